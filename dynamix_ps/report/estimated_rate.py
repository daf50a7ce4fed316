"""How fast a job would train with other sizes, by the window lines that it wrote. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np

from dynamix_ps.policy.model.compute_times import Array, ComputeTimes, sustained_s
from dynamix_ps.run_record.json_lines import Line
from dynamix_ps.run_record.values import number


def estimated_samples_per_s(sizes: Sequence[int], windows: Sequence[Sequence[Line]], end: int) -> float:
    """Samples per second of all workers with these sizes; 0 where a worker's speed is not known.

    A worker computes as long as the line through its windows says (compute_times.py). An iteration takes as long as the
    worker that computes longest, and beyond that as long as it does at the end.

    Args:
        windows: lines of all workers, by window and rank.
        end: so many of the windows are the end.
    """
    times, throttled = ComputeTimes(len(sizes)), np.zeros(len(sizes))
    beyond_s: list[float] = []
    for rows in windows:
        throttled = np.fmax(throttled, _column(rows, "throttled"))
        cpu_s, iterations = _column(rows, "cpu_ratio") * _column(rows, "duration_s"), rows[0]["iterations"]
        own_s = sustained_s(_column(rows, "compute_s"), cpu_s, _column(rows, "cpu_cores"), throttled) / iterations
        times.observe(_column(rows, "samples") / iterations, own_s)
        beyond_s.append((rows[0]["duration_s"] - away_s(rows)) / iterations - float(own_s.max()))
    if not times.all_known:
        return 0.0
    iteration_s = float(times.now.seconds(sizes).max()) + statistics.median(beyond_s[-end:])
    return sum(sizes) / iteration_s if iteration_s > 0 else 0.0


def away_s(rows: Sequence[Line]) -> float:
    """How long one worker did other things than training in a window, and the others waited for it."""
    return max(known(row, "outside_s") for row in rows)


def known(row: Line, name: str, otherwise: float = 0.0) -> float:
    """A number of a line, `otherwise` where it is not known."""
    value = number(row.get(name))
    return value if math.isfinite(value) else otherwise


def _column(rows: Sequence[Line], name: str) -> Array:
    return np.array([known(row, name, math.nan) for row in rows])
