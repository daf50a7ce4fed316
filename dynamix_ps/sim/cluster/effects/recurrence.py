"""Changes that come back with a period.

Jobs that share a link send in turns with their iterations (CASSINI, arXiv 2308.00852). Garbage collectors run every so
many steps: a training step took a minute in place of a second at every hundredth step (patrick-kidger/equinox, issue
1145).
"""

from __future__ import annotations

import numpy as np

from dynamix_ps.sim.cluster.parameters import Reals


def first_occurrence(now: Reals, begins: Reals, every: Reals) -> Reals:
    """The time in the first period, which begins at `begins`, that corresponds to `now`.

    Times before `begins`, and those of changes that do not come back (`every` is infinite), stay as they are.
    """
    recurs = np.isfinite(every) & (now >= begins)
    since = np.mod(np.where(recurs, now - begins, 0), np.where(recurs, every, 1))
    return np.where(recurs, begins + since, now)
