"""A recorded run as arrays, for the fits of calibrate.py. Pure.

`need_s` is how long a worker needs for one iteration on its own: computing and its part of the network. For the slowest
worker it is measured. For a worker that waits it is at least compute time plus exposed network time. Under a CPU quota
that is too little: after a wait a process computes at full speed until it has used up the quota of the period. The
sustained time is then its CPU time over the cores it may use, if that is longer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from dynamix_ps.errors import UsageError
from dynamix_ps.messages import WindowRecord
from dynamix_ps.sim.recorded import RecordedRun

Array = NDArray[np.float64]
FEWEST_WINDOWS = 3
FEWEST_EVALUATIONS = 3


@dataclass(frozen=True, slots=True)
class Series:
    """T windows, W workers, A evaluations, n iterations. Times of windows are means over their iterations."""

    name: str
    sizes: Array  # (T, W), samples per iteration
    iteration_s: Array  # (T,)
    need_s: Array  # (T, W)
    push_pull_s: Array  # (T,)
    first: NDArray[np.int64]  # (T,), first iteration of the window
    loss: Array  # (T,), of training
    accuracy: Array  # (T,), of training
    variance: Array  # (T,), V and S of metrics/noise.py
    signal: Array
    sizes_at: Array  # (n, W), by iteration
    clock_s: Array  # (n + 1,), training time before iteration i, without pauses
    evaluated: Array  # (A,), iterations trained before the evaluation
    test_accuracy: Array  # (A,)

    def reaches(self, target: float) -> float:
        """The number of iterations after which the test accuracy first reaches `target`; NaN if it does not.

        Single evaluations vary by half a percent, so each is replaced by the median of itself and its neighbours.
        Between evaluations the accuracy is interpolated.
        """
        if len(self.test_accuracy) < FEWEST_EVALUATIONS:
            return float("nan")
        of_three = sliding_window_view(np.pad(self.test_accuracy, 1, mode="edge"), 3)
        return crossing(target, self.evaluated, np.median(of_three, axis=1))

    def time_to(self, target: float) -> float:
        """Seconds of training until the test accuracy first reaches `target`; NaN if it does not."""
        return float(np.interp(self.reaches(target), np.arange(len(self.clock_s)), self.clock_s))


def crossing(target: float, at: Array, values: Array) -> float:
    """The place where `values`, taken at the ascending places `at`, first reach the target; interpolated; else NaN."""
    reached = np.flatnonzero(values >= target)
    if not len(reached):
        return float("nan")
    rows = slice(max(int(reached[0]) - 1, 0), int(reached[0]) + 1)
    return float(np.interp(target, values[rows], at[rows]))


def series_of(run: RecordedRun) -> Series:
    """The arrays of a run.

    Raises:
        UsageError: too few windows are complete and without a stall.
    """
    windows: list[tuple[WindowRecord, ...]] = [view.reported for view in run.complete]
    if len(windows) < FEWEST_WINDOWS:
        raise UsageError(
            f"{run.name}: got {len(windows)} windows that all workers reported without a stall, "
            f"expected at least {FEWEST_WINDOWS}; train longer"
        )

    def of_workers(name: str) -> Array:
        return np.array([[getattr(record, name) for record in window] for window in windows], dtype=np.float64)

    def of_cluster(name: str) -> Array:
        return of_workers(name)[:, 0]

    k = of_cluster("iterations")
    iteration_s = of_workers("duration_s").mean(axis=1) / k
    push_pull_s = of_workers("push_pull_s").min(axis=1) / k
    own_s = (of_workers("compute_s") + of_workers("input_s")) / k[:, None] + push_pull_s[:, None]
    sustained_s = of_workers("cpu_ratio") * iteration_s[:, None] / of_workers("cpu_cores")
    sizes, first = of_workers("samples") / k[:, None], of_cluster("first_iteration").astype(np.int64)
    judged = [point for point in run.evaluations if not math.isnan(point.accuracy)]
    evaluated = np.array([point.iteration for point in judged], dtype=np.float64)
    last = int(max([*(first + k), *evaluated]))
    at = _window_of(first, k.astype(np.int64), last)
    return Series(
        name=run.name,
        sizes=sizes,
        iteration_s=iteration_s,
        need_s=np.fmax(own_s, sustained_s),
        push_pull_s=push_pull_s,
        first=first,
        loss=of_cluster("global_loss"),
        accuracy=of_cluster("global_accuracy"),
        variance=of_cluster("noise_variance"),
        signal=of_cluster("noise_signal"),
        sizes_at=sizes[at],
        clock_s=np.concatenate(([0.0], np.cumsum(iteration_s[at]))),
        evaluated=evaluated,
        test_accuracy=np.array([point.accuracy for point in judged], dtype=np.float64),
    )


def _window_of(first: NDArray[Any], lengths: NDArray[Any], last: int) -> NDArray[np.int64]:
    """For every iteration before `last`, its window; an iteration between two windows belongs to the later one."""
    ends = first + lengths
    return np.minimum(np.searchsorted(ends, np.arange(last), side="right"), len(ends) - 1)
