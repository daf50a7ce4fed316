"""Which claims of a proposal count. Pure.

A proposal claims that workers are faster or slower than their present shares say, and that another global batch is
better. The claim about a worker counts if its mean over the windows since the last plan exceeds SURE standard
deviations of a mean of as many times of that worker. It also counts if the claim of the newest window exceeds AT_ONCE
standard deviations of one time. One such worker is enough, as shares add up to 1.

The claim about the global batch counts in the same way, with the standard deviation of the claims themselves: they rest
on the noise scale, whose estimates scatter more than any time. All of this is chosen by us.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dynamix_ps.policy.evidence.measurements import SURE, Scatter
from dynamix_ps.policy.window_arrays import Array

AT_ONCE = 5.0  # standard deviations
KEPT = 8  # windows, the newest
BATCH_DEVIATION = 0.05  # of log(B), assumed


class Counts(NamedTuple):
    """Which claims of a proposal count."""

    shares: bool
    batch: bool


class Claims:
    """The claims since the last plan."""

    def __init__(self) -> None:
        self._shares: deque[Array] = deque(maxlen=KEPT)
        self._batches: deque[Array] = deque(maxlen=KEPT)
        self._scatter = Scatter()  # of claims about the global batch

    def restart(self) -> None:
        """A new plan is in force."""
        self._shares.clear()
        self._batches.clear()

    def see(self, planned: Sequence[int], wanted: Sequence[float], deviations: Array) -> Counts:
        """Compare the sizes of the plan in force with the sizes that a policy wants for the same workers.

        Args:
            deviations: of the logarithms of the workers' times, (workers,).
        """
        now, then = np.asarray(planned, dtype=np.float64), np.asarray(wanted, dtype=np.float64)
        batch = np.log(then.sum() / now.sum())
        there = now > 0
        shares = np.log(then, where=there, out=np.zeros(len(now))) - np.log(now, where=there, out=np.zeros(len(now)))
        self._shares.append(np.where(there, shares - batch, 0.0))
        if self._batches:
            self._scatter.see(batch - self._batches[-1])
        self._batches.append(batch)
        return Counts(
            shares=_count(self._shares, deviations),
            batch=_count(self._batches, self._scatter.deviation(BATCH_DEVIATION)),
        )


def _count(claims: Sequence[Array], deviation: Array) -> bool:
    lasting = len(claims) > 1 and np.abs(np.mean(claims, axis=0)) * math.sqrt(len(claims)) > SURE * deviation
    return bool(np.any(lasting | (np.abs(claims[-1]) > AT_ONCE * deviation)))
