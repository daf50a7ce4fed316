"""What pictures and page show of a history, beside what it holds: rates, waiting, loss of all, time by part. Pure."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from dynamix_ps.report.plots.history import History, WorkerSeries
from dynamix_ps.run_record.model import TIME_PARTS
from dynamix_ps.run_record.values import ratio


@dataclass(frozen=True, slots=True)
class OfAll:
    """All workers together, at the end of every window."""

    time_s: list[float]
    samples: list[float]  # trained since the run began
    samples_per_s: list[float]
    loss: list[float]  # of training


def of_all(history: History) -> OfAll:
    """Every window counts once: by the line of the lowest rank that reported it."""
    seen: set[int] = set()
    points: list[tuple[float, float, float, float]] = []
    for worker in history.workers.values():
        columns = (worker.window_s, worker.windows, worker.global_samples, *_measured(worker))
        points += [
            (time_s, samples, ratio(samples, duration_s), loss)
            for time_s, number, samples, duration_s, loss in zip(*columns, strict=True)
            if number not in seen
        ]
        seen.update(worker.windows)
    points.sort(key=lambda point: point[0])
    trained = itertools.accumulate(samples for _, samples, _, _ in points)
    return OfAll(
        [time_s for time_s, *_ in points],
        list(trained),
        [per_s for _, _, per_s, _ in points],
        [loss for *_, loss in points],
    )


def samples_per_s(worker: WorkerSeries) -> list[float]:
    """Of one worker in every window."""
    return [ratio(*pair) for pair in zip(worker.samples, worker.measured["duration_s"], strict=True)]


def waiting_percent(worker: WorkerSeries) -> list[float]:
    """Of the time of every window, what the worker spent waiting for others."""
    columns = zip(*(worker.part_us[part] for part in TIME_PARTS), worker.part_us["wait"], strict=True)
    return [100 * wait / max(sum(parts), 1e-9) for *parts, wait in columns]


def split_by_plan(worker: WorkerSeries) -> Iterator[tuple[int, dict[str, float]]]:
    """The worker's first plan and its last one, each with `part_medians`."""
    for plan in dict.fromkeys(worker.window_plan[:1] + worker.window_plan[-1:]):
        yield plan, part_medians(worker, plan)


def part_medians(worker: WorkerSeries, plan: int) -> dict[str, float]:
    """Median time per sample (µs) by part, over the windows that lie within the plan.

    Over those that end in it if there are no others.
    """
    ending = [number for number, version in enumerate(worker.window_plan) if version == plan]
    within = [number for number in ending if not worker.window_mixed[number]] or ending
    return {part: statistics.median(worker.part_us[part][number] for number in within) for part in TIME_PARTS}


def _measured(worker: WorkerSeries) -> tuple[list[float], list[float]]:
    return worker.measured["duration_s"], worker.measured["global_loss"]
