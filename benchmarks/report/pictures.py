"""Pictures of a report, each drawn into a matplotlib Figure. A contender has the same colour in all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.report.comparison import Comparison
from benchmarks.suite.contenders import CONTENDERS
from benchmarks.suite.results import CellResult
from benchmarks.suite.statistics import OURS, STATIC, Race, contenders_of, relative_time
from dynamix_ps.report.plots.panels import PART_COLOURS, PART_NAMES, STACKED
from dynamix_ps.report.plots.style import LEGEND_LIMIT, WORKER_COLOURS, WORKER_STYLES, common_legend, nothing
from dynamix_ps.sim.contest.comparison import Estimate

COLUMNS = 4  # of small pictures side by side
ROOM = 1.5  # above and below the sizes, so that at least one power of two is on the axis
LONGEST_BAR = 3.0  # times the reference; longer ones are cut off, their value says how long they are
CURVE_POINTS = 200
OURS_BARS, OTHERS_BARS, REFERENCE_LINE = "#0072b2", "#b5c7d3", "#d55e00"
OTHER_COLOUR = "#777777"  # the time that is none of the parts


def contender_style(name: str) -> dict[str, Any]:
    """Ours in black and thicker, the others in colours by their place in the catalogue."""
    if name == OURS:
        return {"color": "#000000", "linestyle": "-", "linewidth": 2.6, "zorder": 3}
    others = [one for one in CONTENDERS if one != OURS]
    place = others.index(name) if name in others else len(others)
    colours = [colour for colour in WORKER_COLOURS if colour != "#000000"]
    style, colour = divmod(place, len(colours))
    return {"color": colours[colour], "linestyle": WORKER_STYLES[style % len(WORKER_STYLES)], "linewidth": 1.5}


def test_results(figure: Any, race: Race) -> None:
    """The metric on the test data over time: mean over seeds, with the band from the lowest to the highest seed."""
    figure.set_size_inches(8, 4.2)
    axes = figure.subplots()
    metric = race.metric
    axes.set_title(f"Test {metric.title} over time: {race.name}", loc="left", fontsize="medium")
    worst = []
    for name in race.ranking():
        cells = [cell for cell in race.entries[name].values() if cell.curve]
        if not cells:
            continue
        curves = [cell.curve for cell in cells]
        times = np.linspace(
            max(curve[0].time_s for curve in curves), min(curve[-1].time_s for curve in curves), CURVE_POINTS
        )
        values = metric.scale * np.array([_interpolated(times, cell) for cell in cells])
        line = contender_style(name)
        axes.plot(times, values.mean(axis=0), label=name, **line)
        axes.fill_between(times, values.min(axis=0), values.max(axis=0), color=line["color"], alpha=0.12, linewidth=0)
        worst.append(values.min() if metric.higher_is_better else values.max())
    if not worst:
        nothing(axes)
        return
    for threshold in race.thresholds:
        axes.axhline(metric.scale * threshold, color="#777777", linestyle=":", linewidth=1)
    axes.set_xlabel("time since training began (s)")
    axes.set_ylabel(f"test {metric.title}")
    axes.set_xlim(left=0)
    first = metric.scale * race.thresholds[0]
    if metric.higher_is_better:
        axes.set_ylim(bottom=max(min(worst), first - metric.room))
    else:
        axes.set_ylim(top=min(max(worst), first + metric.room))
    axes.grid(color="#e5e5e5")
    axes.legend(fontsize="small", loc="lower right" if metric.higher_is_better else "upper right", ncols=2)


def batch_sizes(figure: Any, race: Race) -> None:
    """Batch sizes over time, one panel per contender, one line per worker, of the lowest seed."""
    names = race.ranking()
    panels = _panels(figure, len(names), height=1.7, sharex=True, sharey=True)
    seeds = {name: next(iter(race.entries[name])) for name in names}
    figure.suptitle(f"Batch size per worker over time: {race.name}, seed {min(seeds.values())}", fontsize="medium")
    for axes, name in zip(panels, names, strict=True):
        _steps(axes, race.entries[name][seeds[name]])
        other = "" if seeds[name] == min(seeds.values()) else f" (seed {seeds[name]})"
        axes.set_title(name + other, loc="left", fontsize="small")
    panels[0].set_yscale("log", base=2)
    panels[0].yaxis.set_major_formatter("{x:g}")
    sizes = [size for name in names for point in race.entries[name][seeds[name]].sizes for size in point.sizes] or [1]
    panels[0].set_ylim(min(sizes) / ROOM, max(sizes) * ROOM)
    for axes in panels[-COLUMNS:]:
        axes.set_xlabel("time since training began (s)", fontsize="small")
    common_legend(figure, panels)


def step_time(figure: Any, race: Race) -> None:
    """Where the time of all workers went: mean over workers and seeds, in parts of training time."""
    names = race.ranking()[::-1]
    figure.set_size_inches(8, 0.28 * len(names) + 1.6)
    axes = figure.subplots()
    axes.set_title(f"Where the workers' time went: {race.name}", loc="left", fontsize="medium")
    rows = [_split(list(race.entries[name].values())) for name in names]
    left = np.zeros(len(names))
    for part in (*STACKED, "other"):
        widths = np.array([row[part] for row in rows])
        colour, label = PART_COLOURS.get(part, OTHER_COLOUR), PART_NAMES.get(part, "evaluations and other")
        axes.barh(names, widths, left=left, color=colour, label=label, height=0.8)
        left += widths
    axes.set_xlabel("part of training time (%)")
    axes.set_xlim(0, 100)
    axes.grid(axis="x", color="#e5e5e5")
    axes.set_axisbelow(True)
    common_legend(figure, [axes])


def headline(figure: Any, found: Sequence[Comparison]) -> None:
    """The subject's time over every rival's, on a logarithmic axis: a dot per race, and all of them with interval."""
    subject = found[0].subject
    figure.set_size_inches(6, 0.32 * len(found) + 1.5)
    axes = figure.subplots()
    for place, one in enumerate(found):
        values = [race.value for race in one.by_race.values()]
        axes.plot(values, [place] * len(values), "o", color=OTHERS_BARS, markersize=5, label="one scenario")
        ends = [place, place]
        axes.plot([one.overall.low, one.overall.high], ends, color=OURS_BARS, linewidth=2.5, label="all, 95 % interval")
        axes.plot(one.overall.value, place, "D", color=OURS_BARS, markersize=6)
        axes.annotate(
            f"{one.overall.value:.2f}",
            (1, place),
            xycoords=axes.get_yaxis_transform(),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
        )
    axes.axvline(1.0, color=REFERENCE_LINE, linewidth=1)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 1 / ROOM), max(high, ROOM))
    axes.set_yticks(range(len(found)), [one.rival for one in found])
    axes.invert_yaxis()
    axes.set_xlabel(f"time of {subject} / time of the rival: left of the line, {subject} is faster")
    axes.grid(axis="x", color="#e5e5e5")
    axes.set_axisbelow(True)
    common_legend(figure, [axes])


def relative_times(figure: Any, among: Sequence[Race]) -> None:
    """Time to the target over that of tuned static: one panel per race, one bar with its interval per contender."""
    contenders = [name for name in contenders_of(among) if name != STATIC]
    panels = _panels(figure, len(among), height=0.21 * len(contenders) + 0.6, sharex=True, sharey=True)
    title = f"Time to target relative to tuned {STATIC}: left of the line is faster"
    if not all(race.has_enough_seeds(name) for race in among for name in race.entries):
        title += "; hatched: fewer seeds than the others, a first impression"
    figure.suptitle(title, fontsize="medium")
    found = [{name: relative_time([race], name, STATIC) for name in contenders} for race in among]
    widest = max((one.high for bars in found for one in bars.values() if one is not None), default=1.0)
    room = min(LONGEST_BAR, max(1.0, widest) + 0.25)
    for axes, race, bars in zip(panels, among, found, strict=True):
        axes.set_title(race.name, loc="left", fontsize="small")
        _bars(axes, race, bars, room)
    panels[0].invert_yaxis()
    panels[0].set_xlim(0, room)


def _bars(axes: Any, race: Race, found: Mapping[str, Estimate | None], room: float) -> None:
    for place, (name, one) in enumerate(found.items()):
        if one is None:
            axes.text(0.05, place, "no result", va="center", fontsize="x-small", color="#777777")
            continue
        colour = OURS_BARS if name == OURS else OTHERS_BARS
        outline = {} if race.has_enough_seeds(name) else {"fill": False, "hatch": "///"}
        axes.barh(place, min(one.value, room), height=0.75, color=colour, edgecolor=colour, **outline)
        axes.plot([one.low, one.high], [place, place], color="#222222", linewidth=1.2)
        inside = one.high > room - 0.2
        ground = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.8}
        where = 0.05 if inside else one.high + 0.03
        axes.text(where, place, f"{one.value:.2f}", va="center", fontsize="x-small", bbox=ground, zorder=4)
    axes.axvline(1.0, color=REFERENCE_LINE, linewidth=1)
    axes.set_yticks(range(len(found)), found, fontsize="small")
    axes.grid(axis="x", color="#e5e5e5")
    axes.set_axisbelow(True)


def _panels(figure: Any, count: int, *, height: float, **shared: bool) -> list[Any]:
    """Small pictures in rows, as wide as there is room for; places that are left over stay empty."""
    columns = min(count, COLUMNS)
    rows = -(-count // columns)
    figure.set_size_inches(max(2.5 * columns, 6.0), height * rows + 1.0)
    panels = list(figure.subplots(rows, columns, squeeze=False, **shared).flat)
    for axes in panels[count:]:
        axes.set_visible(False)
    for axes in panels[max(count - columns, 0) : count]:
        axes.tick_params(labelbottom=True)
    return panels[:count]


def _steps(axes: Any, cell: CellResult) -> None:
    axes.grid(color="#e5e5e5")
    if not cell.sizes:
        nothing(axes)
        return
    end_s = max(cell.train_s or 0.0, cell.sizes[-1].time_s)
    times = [*(point.time_s for point in cell.sizes), end_s]
    for rank, sizes in enumerate(zip(*(point.sizes for point in cell.sizes), strict=True)):
        named = {"label": f"worker {rank}"} if rank < LEGEND_LIMIT else {}
        colour = WORKER_COLOURS[rank % len(WORKER_COLOURS)]
        axes.step(times, [*sizes, sizes[-1]], where="post", color=colour, linewidth=1.4, **named)


def _split(cells: Sequence[CellResult]) -> dict[str, float]:
    """Parts in percent."""
    workers = [one for cell in cells for one in cell.workers]
    if not workers:
        return dict.fromkeys((*STACKED, "other"), 0.0)
    parts = {part: 100 * float(np.mean([getattr(one, part) for one in workers])) for part in STACKED}
    return parts | {"other": max(100 - sum(parts.values()), 0.0)}


def _interpolated(times: Any, cell: CellResult) -> Any:
    return np.interp(times, [point.time_s for point in cell.curve], [cell.value(point) for point in cell.curve])
