"""Workers of one host share its memory bandwidth, caches and power: while several compute, each is slower.

With m workers computing on a host, each runs 1 + contention (m - 1) times slower than alone. All begin an iteration
together, and who has ended no longer disturbs the others. Worker i, which alone would need c_i, then takes exactly

    t_i = c_i + contention * sum over the others j of its host of min(c_i, c_j)

(between the ends of two workers m is constant; summed by parts). So the time of a worker depends on the sizes of
others. Networks run at once by processes of their own have matrix products that take 2.5 times as long with 8 processes
on 4 cores (uxlfoundation/oneDNN, issue 1746): contention 0.2.
"""

from __future__ import annotations

import numpy as np

from dynamix_ps.apportion import Whole
from dynamix_ps.sim.cluster.parameters import Reals


def contended(alone_s: Reals, host: Whole, contention: Reals) -> Reals:
    """Computing seconds beside the other workers of the same host.

    Args:
        alone_s: (..., E, W).
        host: (E, W), equal for workers of one host.
        contention: (E,).
    """
    beside = (host[..., :, None] == host[..., None, :]) & ~np.eye(host.shape[-1], dtype=bool)
    together_s = np.minimum(alone_s[..., :, None], alone_s[..., None, :])
    return np.asarray(alone_s + contention[:, None] * np.where(beside, together_s, 0).sum(axis=-1))
