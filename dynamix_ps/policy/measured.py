"""What the records of one window tell about each worker, as more than one policy reads them. Pure."""

from __future__ import annotations

import numpy as np

from dynamix_ps.messages import WindowRecord
from dynamix_ps.policy.base import View
from dynamix_ps.policy.compute_times import LONGEST_S, SHORTEST_S, Array

MEMORY_CEILING = 0.95  # of the memory that a worker may use


def compute_times_s(view: View) -> Array:
    """Computing seconds per iteration by rank, communication left out; NaN where nothing sensible was measured."""
    times_s = np.full(len(view.records), np.nan)
    for record in view.reported:
        if record.samples > 0 and record.iterations > 0 and SHORTEST_S <= record.compute_s <= LONGEST_S:
            times_s[record.rank] = record.compute_s / record.iterations
    return times_s


def memory_full(record: WindowRecord) -> bool:
    """Whether a worker should not grow, because hardly any of its memory, or its GPU's, is left."""
    return record.memory_ratio >= MEMORY_CEILING or record.gpu_memory_ratio >= MEMORY_CEILING
