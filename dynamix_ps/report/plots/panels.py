"""The pictures of how training went, each drawn into axes it is given."""

from __future__ import annotations

import math
from typing import Any

from dynamix_ps.report.plots import series
from dynamix_ps.report.plots.history import History, WorkerSeries
from dynamix_ps.report.plots.style import (
    LEGEND_LIMIT,
    OF_ALL_COLOUR,
    WORKER_COLOURS,
    finish,
    nothing,
    point_style,
    worker_lines,
    worker_style,
)
from dynamix_ps.run_record.evaluations import ACCURACY, MetricCurve

PART_COLOURS = {"compute": "#0072b2", "push_pull": "#e69f00", "wait": "#d7d7d7", "input": "#009e73"}
STACKED = ("input", "compute", "push_pull", "wait")  # from the axis outwards
PART_NAMES = {"compute": "compute", "push_pull": "push-pull", "wait": "wait for others", "input": "input"}
GAP = 0.5  # between the bars of one worker and the next


def batch_sizes(axes: Any, history: History) -> None:
    """Batch size of every worker over time, as steps."""
    axes.set_ylabel(f"batch size per worker ({history.counted})")
    drawn = False
    for worker in history.workers.values():
        if not worker.batch_s:
            continue
        drawn = True
        times, sizes = [*worker.batch_s, history.end_s], [*worker.batch_sizes, worker.batch_sizes[-1]]
        axes.step(times, sizes, where="post", linewidth=1.8, label=f"worker {worker.rank}", **worker_style(worker))
    finish(axes, history, drawn, legend=len(history.workers) <= LEGEND_LIMIT)
    axes.set_ylim(bottom=0)


def rates(axes: Any, history: History) -> None:
    """Samples, or tokens, per second of every worker, and of all together."""
    axes.set_ylabel(f"{history.counted}/s")
    highest = worker_lines(axes, history, series.samples_per_s)
    total = series.of_all(history)
    if total.time_s:
        style = {"color": OF_ALL_COLOUR, "linewidth": 1.8} | point_style(len(total.time_s))
        axes.plot(total.time_s, total.samples_per_s, label="all workers", **style)
    finish(axes, history, highest is not None, legend=len(history.workers) <= LEGEND_LIMIT)
    axes.set_ylim(bottom=0)


def loss(axes: Any, history: History) -> None:
    """Loss of training over all workers, window by window."""
    axes.set_ylabel("loss of training")
    total = series.of_all(history)
    is_known = any(math.isfinite(value) for value in total.loss)
    if is_known:
        style = {"color": WORKER_COLOURS[0], "linewidth": 1.6} | point_style(len(total.time_s))
        axes.plot(total.time_s, total.loss, **style)
    finish(axes, history, is_known, legend=False)


def metric_over_iterations(axes: Any, history: History, metric: MetricCurve | None) -> None:
    """One value of the evaluations; None: there is none."""
    axes.set_xlabel("iteration")
    axes.grid(color="#e5e5e5")
    axes.set_axisbelow(True)
    if metric is None:
        nothing(axes)
        return
    axes.set_ylabel(f"test {metric.title}")
    named = [point for point in history.evaluations if metric.name in point.values]
    iterations = [point.iteration for point in named]
    axes.plot(iterations, metric.values, "o-", color=WORKER_COLOURS[0], markersize=4)


def evaluation(axes: Any, history: History) -> None:
    """The main metric on the test set over time; marks on the time axis where a new plan came into force."""
    curve = history.main_metric
    name = curve.name if curve else ACCURACY
    is_accuracy = name == ACCURACY
    factor = 100 if is_accuracy else 1
    axes.set_ylabel("test accuracy (%)" if curve is None or is_accuracy else f"test {curve.title}")
    if history.plan_s:
        foot = [0.02] * len(history.plan_s)
        style = {"color": "#555555", "marker": "|", "markersize": 9, "linestyle": "none"}
        axes.plot(history.plan_s, foot, transform=axes.get_xaxis_transform(), label="new plan in force", **style)
    axes.margins(y=0.15)
    values = [factor * value for value in curve.values] if curve else []
    times = curve.elapsed_s if curve else []
    axes.plot(times, values, "o-", color=WORKER_COLOURS[0], markersize=4, label=f"test {name}")
    if is_accuracy and history.target_accuracy is not None:
        target = 100 * history.target_accuracy
        axes.axhline(target, color=WORKER_COLOURS[5], linestyle="--", linewidth=1.2, label=f"target {target:g} %")
    if values:
        axes.annotate(
            f"{values[-1]:.1f} %" if is_accuracy else f"{values[-1]:.4g}",
            (times[-1], values[-1]),
            xytext=(-4, 6),
            textcoords="offset points",
            ha="right",
            fontweight="bold",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
        )
    finish(axes, history, bool(values), legend=False)
    if values:
        axes.legend(fontsize="small", framealpha=0.9, loc="lower right", bbox_to_anchor=(1.0, 0.06))


def waiting(axes: Any, history: History) -> None:
    """Share of every worker's time spent waiting for others, window by window."""
    axes.set_ylabel("time waiting for others (%)")
    highest = worker_lines(axes, history, series.waiting_percent)
    finish(axes, history, highest is not None, legend=len(history.workers) <= LEGEND_LIMIT)
    axes.set_ylim(0, min(1.1 * max(highest or 0.0, 10.0), 100))


def split_by_plan(axes: Any, history: History) -> None:
    """Median time per sample, or token, by part, for every worker: under its first plan, and under its last one."""
    names: list[str] = []
    rows: list[dict[str, float]] = []
    positions: list[float] = []
    for gap, worker in enumerate(history.workers.values()):
        for plan, medians in series.split_by_plan(worker):
            positions.append(len(rows) + GAP * gap)
            names.append(f"worker {worker.rank}, plan {plan}")
            rows.append(medians)
    left = [0.0] * len(rows)
    for part in STACKED:
        widths = [row[part] for row in rows]
        axes.barh(positions, widths, left=left, color=PART_COLOURS[part], label=PART_NAMES[part], height=0.85)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_yticks(positions, names)
    axes.invert_yaxis()
    axes.set_xlabel(f"time per {history.one} of the global batch (µs), median of windows")
    axes.grid(axis="x", color="#e5e5e5")
    axes.set_axisbelow(True)
    if rows:
        axes.legend(
            fontsize="small", ncols=len(STACKED), loc="upper center", bbox_to_anchor=(0.45, -0.13), frameon=False
        )
    else:
        nothing(axes)
    axes.set_xlim(0, 1.03 * max([*left, 1.0]))


def split_over_time(axes: Any, history: History, worker: WorkerSeries | None) -> None:
    """Time per sample, or token, of one worker by part, window by window; None: there is no worker."""
    if worker is not None:
        axes.set_ylabel(f"worker {worker.rank}\n(µs per {history.one})")
    if worker is not None and worker.window_s:
        times = [worker.batch_s[0] if worker.batch_s else 0.0, *worker.window_s]
        parts = [[worker.part_us[part][0], *worker.part_us[part]] for part in STACKED]
        names, colours = [PART_NAMES[part] for part in STACKED], [PART_COLOURS[part] for part in STACKED]
        axes.stackplot(times, *parts, labels=names, colors=colours, step="pre")
    finish(axes, history, worker is not None and bool(worker.window_s), legend=False)
    axes.set_ylim(bottom=0)
