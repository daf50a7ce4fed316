"""What a run gained by changing the batch sizes: its end against its own first sizes. Pure.

The first sizes are those of plan 0, the cluster file's. The end is the last quarter of the windows under later plans.
Both are measured in the same run, on the same cluster; windows in which the cluster stalled count on neither side.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dynamix_ps.run_record.json_lines import Line

END_SHARE = 0.25  # of the windows under later plans (chosen by us)
SAME_BATCH = 0.05  # global batches that differ by a smaller part count as the same (chosen by us)
ROUGH_BELOW = 20  # iterations; a figure from fewer is called rough (chosen by us)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some windows of all workers, taken together."""

    batch_sizes: tuple[int, ...]  # of the last of the windows
    iterations: int
    duration_s: float
    samples_per_s: float  # of all workers together
    global_batch: float  # samples of an iteration, mean
    wait_fraction: tuple[float, ...]  # per worker: part of its time spent waiting for others

    @property
    def mean_wait(self) -> float:
        return statistics.fmean(self.wait_fraction)


@dataclass(frozen=True, slots=True)
class Gain:
    """First sizes and end of a run; `unknown_because` says why they cannot be compared."""

    first: Stretch | None
    last: Stretch | None
    unknown_because: str = ""

    @property
    def ratio(self) -> float | None:
        """Samples per second at the end over those with the first sizes."""
        if self.unknown_because or self.first is None or self.last is None:
            return None
        return self.last.samples_per_s / self.first.samples_per_s

    @property
    def rough(self) -> bool:
        """Whether one side rests on few iterations."""
        return any(side is not None and side.iterations < ROUGH_BELOW for side in (self.first, self.last))


def gain_of(windows: Iterable[Line], n_workers: int, mode: str) -> Gain:
    """Compare the end of a run with its first sizes.

    Args:
        windows: window lines of all workers, in any order.
        n_workers: a window counts only if so many workers reported it.
        mode: as in the cluster file; only `adapt` changes sizes.

    Raises:
        KeyError, TypeError: a line lacks what a window line must have.
    """
    whole = [rows for rows in _by_window(windows, n_workers) if _usable(rows)]
    first = _stretch([rows for rows in whole if rows[0]["plan_version"] == 0])
    later = [rows for rows in whole if rows[0]["plan_version"] > 0]
    last = _stretch(later[-max(1, round(END_SHARE * len(later))) :]) if later else None
    return Gain(first, last, _obstacle(first, last, mode))


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


def _stretch(windows: Sequence[Sequence[Line]]) -> Stretch | None:
    if not windows:
        return None
    per_worker = list(zip(*windows, strict=True))
    durations_s = [sum(row["duration_s"] for row in rows) for rows in per_worker]
    waits_s = [sum(row["wait_s"] or 0.0 for row in rows) for rows in per_worker]
    samples = sum(row["samples"] for rows in windows for row in rows)
    iterations, duration_s = sum(rows[0]["iterations"] for rows in windows), statistics.fmean(durations_s)
    return Stretch(
        batch_sizes=tuple(row["batch_size"] for row in windows[-1]),
        iterations=iterations,
        duration_s=duration_s,
        samples_per_s=samples / duration_s,
        global_batch=samples / iterations,
        wait_fraction=tuple(wait / duration for wait, duration in zip(waits_s, durations_s, strict=True)),
    )


def _obstacle(first: Stretch | None, last: Stretch | None, mode: str) -> str:
    if mode != "adapt":
        return f"mode {mode} leaves the batch sizes as they are"
    if last is None:
        return "the batch sizes never changed" if first else "no window was measured"
    if first is None:
        return "no window was measured with the first sizes"
    if first.batch_sizes == last.batch_sizes:
        return "the batch sizes at the end are the first ones"
    if not first.samples_per_s:
        return "no sample was trained with the first sizes"
    return ""


def gain_text(gain: Gain, counted: str = "samples") -> str:
    """What was gained, in sentences for people. `counted`: what sizes are in, samples or tokens."""
    first, last, ratio = gain.first, gain.last, gain.ratio
    if first is None or last is None or ratio is None:
        return f"unknown: {gain.unknown_because}"
    one = f"a {counted.removesuffix('s')}"
    rates = f"{last.samples_per_s:,.0f} against {first.samples_per_s:,.0f}"
    sentences = [
        f"{ratio:.2f} times the {counted}/s of the first sizes: {rates}",
        f"Workers wait {100 * last.mean_wait:.0f} % of the time, {100 * first.mean_wait:.0f} % at first",
    ]
    if abs(last.global_batch / first.global_batch - 1) > SAME_BATCH:
        sentences.append(
            f"The global batch went from {first.global_batch:.0f} to {last.global_batch:.0f}, so {one} may teach "
            f"{'less' if last.global_batch > first.global_batch else 'more'} than at first"
        )
    if gain.rough:
        sentences.append(
            f"Rough: measured over {first.iterations} iterations at first and {last.iterations} at the end"
        )
    return ". ".join(sentences)
