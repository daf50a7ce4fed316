"""What a run gained by changing the batch sizes: its end against its own first sizes. Pure.

The first sizes are those of plan 0, the cluster file's. Their samples per second are measured over WARM iterations or
more after the first WARM ones, which are slow. Where the first plan came sooner, they are estimated from the workers'
computing times at later sizes (estimated_rate.py), and called so. The end is the last quarter of the
windows under later plans. What is no training, such as an evaluation by one worker alone, and windows in which the
cluster stalled count on neither side.

Samples per second say nothing of what a sample teaches. Where the global batch has changed, the noise scale that was
measured at the end tells what is known of it (model/efficiency.py).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dynamix_ps.policy.base import LR_RULES
from dynamix_ps.policy.model.efficiency import TUNING, step_progress
from dynamix_ps.report.estimated_rate import away_s, estimated_samples_per_s, known
from dynamix_ps.run_record.json_lines import Line

END_SHARE = 0.25  # of the windows under later plans (chosen by us)
SAME_BATCH = 0.05  # global batches that differ by a smaller part count as the same (chosen by us)
WARM = 20  # iterations (chosen by us)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some windows of all workers, taken together."""

    batch_sizes: tuple[int, ...]  # of the last of the windows
    iterations: int
    duration_s: float
    samples_per_s: float  # of all workers together
    global_batch: float  # samples of an iteration, mean
    wait_fraction: tuple[float, ...]  # per worker: part of its time spent waiting for others
    estimated: bool = False  # samples_per_s, from other sizes

    @property
    def mean_wait(self) -> float:
        return statistics.fmean(self.wait_fraction)


@dataclass(frozen=True, slots=True)
class Gain:
    """First sizes and end of a run; `unknown_because` says why they cannot be compared.

    `progress_per_sample` is what a sample teaches at the end over what one taught at first; NaN where unknown.
    """

    first: Stretch | None
    last: Stretch | None
    unknown_because: str = ""
    progress_per_sample: float = math.nan

    @property
    def ratio(self) -> float | None:
        """Samples per second at the end over those with the first sizes."""
        if self.unknown_because or self.first is None or self.last is None:
            return None
        return self.last.samples_per_s / self.first.samples_per_s

    @property
    def batch_changed(self) -> bool:
        """Whether the global batch at the end is another one than at first."""
        if self.first is None or self.last is None:
            return False
        return abs(self.last.global_batch / self.first.global_batch - 1) > SAME_BATCH


def gain_of(
    windows: Iterable[Line], n_workers: int, mode: str, lr_rule: str = "none", first_sizes: Sequence[int] = ()
) -> Gain:
    """Compare the end of a run with its first sizes.

    Args:
        windows: window lines of all workers, in any order.
        n_workers: a window counts only if so many workers reported it.
        mode: as in the cluster file; only `adapt` changes sizes.
        lr_rule: as in the cluster file; what a sample teaches depends on it.
        first_sizes: to compare with where no window ran with plan 0; none: there is nothing to compare with then.

    Raises:
        KeyError, TypeError: a line lacks what a window line must have.
    """
    if n_workers == 1:
        return Gain(None, None, "one worker waits for nobody")
    whole = [rows for rows in _by_window(windows, n_workers) if _usable(rows)]
    first_rows = [rows for rows in whole if rows[0]["plan_version"] == 0]
    later = [rows for rows in whole if rows[0]["plan_version"] > 0]
    last = _stretch(later[-_end_of(later) :]) if later else None
    warm = _stretch([rows for rows in first_rows if rows[0]["first_iteration"] >= WARM])
    cold = _stretch(first_rows) or (_untried(first_sizes) if first_sizes else None)
    first = warm if warm and warm.iterations >= WARM else _estimated(cold, later)
    obstacle = _obstacle(first, last, mode)
    if first is None or last is None or obstacle:
        return Gain(first, last, obstacle)
    return Gain(first, last, progress_per_sample=_progress_per_sample(first, last, later, lr_rule))


def _by_window(windows: Iterable[Line], n_workers: int) -> list[Sequence[Line]]:
    """The lines of all workers of each window, by rank; windows in which one is missing are left out."""
    found: dict[int, dict[int, Line]] = {}
    for line in windows:
        found.setdefault(line["window"], {})[line["rank"]] = line
    complete = (of_ranks for _, of_ranks in sorted(found.items()) if len(of_ranks) == n_workers)
    return [[line for _, line in sorted(of_ranks.items())] for of_ranks in complete]


def _usable(rows: Sequence[Line]) -> bool:
    """Under one plan, without a stall, and timed."""
    stalled = any(row.get("flagged") for row in rows)
    return not stalled and len({row["plan_version"] for row in rows}) == 1 and all(row["duration_s"] for row in rows)


def _end_of(later: Sequence[object]) -> int:
    """How many of the windows under later plans are the end."""
    return max(1, round(END_SHARE * len(later)))


def _stretch(windows: Sequence[Sequence[Line]]) -> Stretch | None:
    if not windows:
        return None
    per_worker = list(zip(*windows, strict=True))
    away = [away_s(rows) for rows in windows]
    durations_s = [sum(row["duration_s"] for row in rows) - sum(away) for rows in per_worker]
    own_away_s = [sum(known(row, "outside_s") for row in rows) for rows in per_worker]
    waits_s = [
        max(sum(row["wait_s"] or 0.0 for row in rows) - (sum(away) - own_s), 0.0)
        for rows, own_s in zip(per_worker, own_away_s, strict=True)
    ]
    samples = sum(row["samples"] for rows in windows for row in rows)
    iterations, duration_s = sum(rows[0]["iterations"] for rows in windows), statistics.fmean(durations_s)
    return Stretch(
        batch_sizes=_sizes(windows[-1]),
        iterations=iterations,
        duration_s=duration_s,
        samples_per_s=samples / duration_s,
        global_batch=samples / iterations,
        wait_fraction=tuple(wait / duration for wait, duration in zip(waits_s, durations_s, strict=True)),
    )


def _untried(sizes: Sequence[int]) -> Stretch:
    return Stretch(tuple(sizes), 0, 0.0, 0.0, float(sum(sizes)), wait_fraction=(math.nan,) * len(sizes))


def _sizes(rows: Sequence[Line]) -> tuple[int, ...]:
    return tuple(row["batch_size"] for row in rows)


def _estimated(first: Stretch | None, later: Sequence[Sequence[Line]]) -> Stretch | None:
    """The first sizes at the speeds that later windows show; None where these are not known."""
    if first is None or not later or not sum(first.batch_sizes):
        return first
    per_s = estimated_samples_per_s(first.batch_sizes, later, _end_of(later))
    return (
        replace(first, samples_per_s=per_s, global_batch=float(sum(first.batch_sizes)), estimated=True)
        if per_s
        else None
    )


def _progress_per_sample(first: Stretch, last: Stretch, later: Sequence[Sequence[Line]], lr_rule: str) -> float:
    """What a sample teaches at the end over what one taught at first, by the noise scale at the end."""
    end = later[-_end_of(later) :]
    noise = [(known(rows[0], "noise_variance", math.nan), known(rows[0], "noise_signal", math.nan)) for rows in end]
    pairs = [pair for pair in noise if not math.isnan(sum(pair))]
    variance, signal = (sum(values) for values in zip(*pairs, strict=True)) if pairs else (math.nan, math.nan)
    if not (variance > 0 and signal > 0):
        return math.nan
    rule = np.array(LR_RULES.index(lr_rule), dtype=np.int8)
    noise_scale, reference = np.array(variance / signal), np.array(first.global_batch)
    at_first, at_end = (
        float(step_progress(rule, TUNING, reference, noise_scale, np.array(batch))) / batch
        for batch in (first.global_batch, last.global_batch)
    )
    return at_end / at_first if at_first > 0 else math.nan


def _obstacle(first: Stretch | None, last: Stretch | None, mode: str) -> str:
    if mode != "adapt":
        return f"mode {mode} leaves the batch sizes as they are"
    if last is None:
        return "the batch sizes never changed" if first else "no window was measured"
    if first is None:
        return "no window was measured with the first sizes"
    if first.batch_sizes == last.batch_sizes and not abs(last.global_batch / first.global_batch - 1) > SAME_BATCH:
        return "the batch sizes at the end are the first ones"
    few = (
        f"only {last.iterations} iterations were measured at the end, {WARM} are needed"
        if last.iterations < WARM
        else ""
    )
    return few if first.samples_per_s else "no sample was trained with the first sizes"


def gain_text(gain: Gain, counted: str = "samples") -> str:
    """What was gained, in sentences for people. `counted`: what sizes are in, samples or tokens."""
    first, last, ratio = gain.first, gain.last, gain.ratio
    if first is None or last is None or ratio is None:
        return f"unknown: {gain.unknown_because}"
    how = " (estimated from the times at later sizes)" if first.estimated else ""
    rates = f"{last.samples_per_s:,.0f} against {first.samples_per_s:,.0f}{how}"
    waits = f"In the last quarter workers wait {100 * last.mean_wait:.0f} % of the time"
    if not first.estimated:
        waits += f", {100 * first.mean_wait:.0f} % at first"
    return f"{ratio:.2f} times the {counted}/s of the first sizes: {rates}. {waits}"


def progress_text(gain: Gain, counted: str = "samples") -> str:
    """What the change of the global batch means for progress; empty where it has not changed."""
    if gain.ratio is None or not gain.batch_changed or gain.first is None or gain.last is None:
        return ""
    mean = f"{gain.last.global_batch:.0f} in the mean of the last quarter"
    changed = f"the global batch went from {gain.first.global_batch:.0f} to {mean}"
    one, per_sample = f"a {counted.removesuffix('s')}", gain.progress_per_sample
    if math.isnan(per_sample):
        return f"{changed}; what {one} teaches then is unknown, as no noise scale was measured at the end"
    return (
        f"{changed}. By the noise scale at the end, {one} teaches {per_sample:.2f} times as much as at first, "
        f"which makes {per_sample * gain.ratio:.2f} times the progress per second (a model)"
    )
