"""Network time that a worker adds to its computing, told from one window. Pure."""

from __future__ import annotations

import numpy as np

from dynamix_ps.policy.compute_times import LONGEST_S
from dynamix_ps.policy.window_arrays import Array, WindowArrays


def exposed_s(window: WindowArrays, compute_s: Array) -> tuple[Array, Array]:
    """Seconds per iteration beyond a worker's computing, (..., workers), and seconds that computing hides, (...,).

    `compute_s`, (..., workers), is how long the workers compute in an iteration.

    NaN for a worker that did not compute, and for times beyond LONGEST_S, which were not measured.

    Data are on the way for transfer_i seconds, of which the overlap with computing hides h, the same for all. Nobody
    takes longer than the iteration, c_i + transfer_i - h <= T, and somebody takes as long: that tells h. Where
    transfers are not measured, all have the same, T - max c_i; around a ring they come here alike (window_arrays.py).
    Chosen by us.
    """
    iterations = window.iterations[..., None]
    iteration_s = window.duration_s[..., None] / iterations
    transfer_s = np.where(np.isfinite(window.push_busy), window.push_busy, 0.0) * iteration_s
    computes = np.isfinite(compute_s)
    alone_s = np.where(computes, compute_s + transfer_s, -np.inf)
    hidden_s = np.maximum(alone_s.max(axis=-1, keepdims=True) - iteration_s, 0.0)
    own_s = np.maximum(transfer_s - hidden_s, 0.0)
    longest_s = np.where(computes, compute_s + own_s, -np.inf).max(axis=-1, keepdims=True)
    exposed = own_s + np.maximum(iteration_s - longest_s, 0.0)
    return np.where(computes & (exposed <= LONGEST_S), exposed, np.nan), hidden_s[..., 0]
