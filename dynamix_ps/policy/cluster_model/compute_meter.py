"""What the records of one window tell about each worker, as more than one policy reads them. Pure."""

from __future__ import annotations

import numpy as np

from dynamix_ps.messages import WindowRecord
from dynamix_ps.policy.base import View
from dynamix_ps.policy.cluster_model.compute_times import LONGEST_S, SHORTEST_S, Array, sustained_s

MEMORY_CEILING = 0.95  # of the memory that a worker may use


class ComputeMeter:
    """What all policies measure alike: what an iteration costs each worker, communication left out.

    Under a CPU quota that is what the quota sustains (compute_times.sustained_s), for every contender, since a rival
    that took a rested worker for a fast one would lose to the emulation and not to us.
    """

    def __init__(self, n_workers: int) -> None:
        self._throttled = np.zeros(n_workers)  # the most that was ever seen

    def observe(self, view: View) -> tuple[Array, Array]:
        """Samples and computing seconds per iteration by rank, both NaN where nothing sensible was measured."""
        for record in view.reported:
            self._throttled[record.rank] = np.fmax(self._throttled[record.rank], record.throttled)
        values = [
            (r.rank, r.iterations, r.samples, r.compute_s, r.cpu_ratio * r.duration_s, r.cpu_cores,
             self._throttled[r.rank])
            for r in view.reported
            if r.iterations > 0 and r.samples > 0
        ]  # fmt: skip
        ranks, iterations, samples, *times = np.array(values, dtype=np.float64).reshape(-1, 7).T
        sizes, times_s = samples / iterations, sustained_s(*times) / iterations
        sensible = (times_s >= SHORTEST_S) & (times_s <= LONGEST_S)
        rows = np.full((2, len(view.records)), np.nan)
        rows[:, ranks.astype(int)] = np.where(sensible, (sizes, times_s), np.nan)
        return rows[0], rows[1]


def memory_full(record: WindowRecord) -> bool:
    """Whether a worker should not grow, because hardly any of its memory, or its GPU's, is left."""
    return record.memory_ratio >= MEMORY_CEILING or record.gpu_memory_ratio >= MEMORY_CEILING
