"""The charts of a page: titles, axes, curves. Pure; `page.js` draws them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dynamix_ps.report.plots.history import History, WorkerSeries
from dynamix_ps.report.plots.series import of_all, samples_per_s, split_by_plan, waiting_percent
from dynamix_ps.run_record.evaluations import ACCURACY

MOST_POINTS = 50_000  # of a page: about 1 MB (chosen by us)
MOST_OF_A_CURVE = 2000  # more than a screen has columns of pixels (chosen by us)
FEWEST_OF_A_CURVE = 12
OF_ALL = -1  # the colour of what is of all workers together
TIME = "time since training began"
_PARTS = {"input": "input", "compute": "compute", "push_pull": "push-pull", "wait": "wait for others"}  # from the axis


@dataclass(frozen=True, slots=True)
class ChartCurve:
    """Points from left to right. An unknown value is NaN, and a gap."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int  # its place in the palette


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves over one axis."""

    title: str
    y: str
    curves: Sequence[ChartCurve]
    x: str = TIME  # in seconds; any other axis counts
    steps: bool = False  # a value holds until the next one
    from_zero: bool = True
    dots: bool = False
    marks: Sequence[float] = ()  # on the axis: new plans
    target: float | None = None


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar of stacked parts in every row."""

    title: str
    x: str
    parts: Sequence[str]
    rows: Sequence[tuple[str, Sequence[float]]]


def charts_of_run(history: History) -> list[Chart | Bars]:
    """What the page of one run shows."""
    counted, total, marks = history.counted, of_all(history), history.plan_s
    rates = ChartCurve("all workers", total.time_s, total.samples_per_s, OF_ALL)
    return [
        Chart("Batch sizes", counted, _batch_sizes(history), steps=True, marks=marks),
        Chart(f"{counted.capitalize()} per second", f"{counted}/s", [rates, *_workers(history, samples_per_s)]),
        Chart("Loss of training over time", "loss", [ChartCurve("loss", total.time_s, total.loss, 0)], from_zero=False),
        Chart(
            f"Loss of training over {counted}",
            "loss",
            [ChartCurve("loss", total.samples, total.loss, 0)],
            x=f"{counted} trained",
            from_zero=False,
        ),
        *_evaluation([("", history)], history.target_accuracy),
        Chart("Time spent waiting for others", "% of the time", _workers(history, waiting_percent)),
        _time_by_part(history),
    ]


def charts_of_two(names: Sequence[str], histories: Sequence[History]) -> list[Chart]:
    """The same of two runs, in one chart each, where all workers together have one curve."""
    counted = histories[0].counted
    totals = [of_all(history) for history in histories]
    named = list(zip(names, histories, strict=True))

    def curves(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> list[ChartCurve]:
        return [ChartCurve(name, x, y, number) for number, (name, (x, y)) in enumerate(zip(names, pairs, strict=True))]

    first = [next(iter(history.workers.values()), WorkerSeries(0)) for history in histories]
    return [
        Chart(
            f"{counted.capitalize()} per second", f"{counted}/s", curves([(t.time_s, t.samples_per_s) for t in totals])
        ),
        Chart(
            "Global batch", counted, curves([(worker.window_s, worker.global_batch) for worker in first]), steps=True
        ),
        Chart("Loss of training over time", "loss", curves([(t.time_s, t.loss) for t in totals]), from_zero=False),
        Chart(
            f"Loss of training over {counted}",
            "loss",
            curves([(t.samples, t.loss) for t in totals]),
            x=f"{counted} trained",
            from_zero=False,
        ),
        *_evaluation(named, histories[0].target_accuracy),
        Chart(
            "Waiting for others, mean of the workers", "% of the time", curves([_mean_waiting(h) for h in histories])
        ),
    ]


def drawn(charts: Sequence[Chart | Bars]) -> list[dict[str, Any]]:
    """For page.js: JSON values, with so many points that the page stays below 2 MB."""
    curves = sum(len(chart.curves) for chart in charts if isinstance(chart, Chart))
    limit = min(max(MOST_POINTS // max(curves, 1), FEWEST_OF_A_CURVE), MOST_OF_A_CURVE)
    return [_chart(chart, limit) if isinstance(chart, Chart) else _bars(chart) for chart in charts]


def _batch_sizes(history: History) -> list[ChartCurve]:
    """Every size holds until the next; the last one until the end."""
    return [
        ChartCurve(
            f"worker {worker.rank}",
            [*worker.batch_s, max(history.end_s, worker.batch_s[-1])],
            [*worker.batch_sizes, worker.batch_sizes[-1]],
            worker.rank,
        )
        for worker in history.workers.values()
        if worker.batch_s
    ]


def _workers(history: History, values: Callable[[WorkerSeries], list[float]]) -> list[ChartCurve]:
    """A curve per worker over the ends of its windows."""
    return [
        ChartCurve(f"worker {worker.rank}", worker.window_s, values(worker), worker.rank)
        for worker in history.workers.values()
    ]


def _evaluation(named: Sequence[tuple[str, History]], target: float | None) -> list[Chart]:
    """The main metric on the test set; no chart where nothing was evaluated."""
    shown = [(name, metric) for name, history in named if (metric := history.main_metric)]
    if not shown:
        return []
    metric = shown[0][1]
    is_accuracy = metric.name == ACCURACY
    factor, y = (100, "%") if is_accuracy else (1, metric.name)
    curves = [
        ChartCurve(name or metric.name, one.elapsed_s, [factor * value for value in one.values], number)
        for number, (name, one) in enumerate(shown)
        if one.name == metric.name
    ]
    title = f"{metric.title[:1].upper()}{metric.title[1:]} on the test set"
    goal = 100 * target if is_accuracy and target is not None else None
    return [Chart(title, y, curves, from_zero=False, dots=True, target=goal)]


def _time_by_part(history: History) -> Bars:
    rows = [
        (f"worker {worker.rank}, plan {plan}", [medians[part] for part in _PARTS])
        for worker in history.workers.values()
        for plan, medians in split_by_plan(worker)
    ]
    title = f"Time per {history.one}, first and last plan"
    axis = f"µs per {history.one} of the global batch, median of windows"
    return Bars(title, axis, list(_PARTS.values()), rows)


def _mean_waiting(history: History) -> tuple[list[float], list[float]]:
    """Over the workers of each window, at the end of it."""
    found: dict[int, list[tuple[float, float]]] = {}
    for worker in history.workers.values():
        for number, time_s, percent in zip(worker.windows, worker.window_s, waiting_percent(worker), strict=True):
            found.setdefault(number, []).append((time_s, percent))
    points = sorted((max(time_s for time_s, _ in all_of), _mean([p for _, p in all_of])) for all_of in found.values())
    return [time_s for time_s, _ in points], [percent for _, percent in points]


def _chart(chart: Chart, limit: int) -> dict[str, Any]:
    most = max((len(curve.x) for curve in chart.curves), default=0)
    return {
        "title": chart.title,
        "x": chart.x,
        "y": chart.y,
        "steps": chart.steps,
        "fromZero": chart.from_zero,
        "dots": chart.dots,
        "isTime": chart.x == TIME,
        "together": -(-most // limit),  # so many windows are one point
        "marks": [_short(mark) for mark in _every(chart.marks, limit)],
        "target": chart.target,
        "curves": [_curve(_thinned(curve, limit, chart.steps)) for curve in chart.curves],
    }


def _bars(bars: Bars) -> dict[str, Any]:
    rows = [{"name": name, "values": [_short(value) for value in values]} for name, values in bars.rows]
    return {"title": bars.title, "x": bars.x, "parts": list(bars.parts), "rows": rows}


def _curve(curve: ChartCurve) -> dict[str, Any]:
    return {
        "name": curve.name,
        "colour": curve.colour,
        "x": [round(value, 3) for value in curve.x],
        "y": [_short(value) for value in curve.y],
    }


def _thinned(curve: ChartCurve, limit: int, steps: bool) -> ChartCurve:
    """Neighbouring points become one where there are too many: their mean at the last of them; of steps the last."""
    together = -(-len(curve.x) // limit)
    if together <= 1:
        return curve
    starts = range(0, len(curve.x), together)
    groups = [curve.y[start : start + together] for start in starts]
    x = [curve.x[min(start + together, len(curve.x)) - 1] for start in starts]
    return replace(curve, x=x, y=[group[-1] if steps else _mean(group) for group in groups])


def _every(values: Sequence[float], limit: int) -> Sequence[float]:
    return values[:: max(-(-len(values) // limit), 1)]


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def _short(value: float) -> float | None:
    """Six digits; null where it is not known."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
