"""The style of all pictures of a run: colours (of Okabe and Ito), axes, legends, lines over time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from dynamix_ps.report.plots.history import History, WorkerSeries

WORKER_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#000000", "#b3a500")
WORKER_STYLES = ("-", "--", ":", "-.")
SERVER_COLOUR = "#777777"
OF_ALL_COLOUR = "#999999"
LEGEND_LIMIT = 16  # more workers than this are not named one by one
FEW_POINTS = 8  # a line of fewer points shows them as dots


def worker_style(worker: WorkerSeries) -> dict[str, str]:
    """Colours repeat after eight workers, with another line style."""
    turn, colour = divmod(worker.rank, len(WORKER_COLOURS))
    return {"color": WORKER_COLOURS[colour], "linestyle": WORKER_STYLES[turn % len(WORKER_STYLES)]}


def point_style(count: int) -> dict[str, Any]:
    """Dots on a line of few points."""
    return {"marker": "o", "markersize": 3} if count < FEW_POINTS else {}


def worker_lines(axes: Any, history: History, values: Callable[[WorkerSeries], Sequence[float]]) -> float | None:
    """One line per worker over the ends of its windows, with gaps where a value is unknown.

    Returns the highest value drawn, None if nothing was known.
    """
    highest: float | None = None
    for worker in history.workers.values():
        series = values(worker)
        known = [value for value in series if not math.isnan(value)]
        if not known:
            continue
        highest = max(known) if highest is None else max(highest, *known)
        style = worker_style(worker) | point_style(len(known))
        axes.plot(worker.window_s, series, linewidth=1.4, label=f"worker {worker.rank}", **style)
    return highest


def finish(axes: Any, history: History, drawn: bool, legend: bool) -> None:
    """Time axis, grid and legend; an empty picture says that it is."""
    axes.set_xlabel("time since training began (s)")
    axes.set_xlim(0, 1.02 * max(history.end_s, 1.0))
    axes.grid(color="#e5e5e5")
    axes.set_axisbelow(True)
    if not drawn:
        nothing(axes)
    elif legend:
        axes.legend(fontsize="small", framealpha=0.9)


def log_scale(axes: Any) -> None:
    """A logarithmic axis with plain numbers."""
    from matplotlib.ticker import LogFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(LogFormatter())
    axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))


def nothing(axes: Any) -> None:
    """Write that there is nothing to show."""
    axes.set_yticks([])
    axes.text(0.5, 0.5, "nothing recorded", transform=axes.transAxes, ha="center", va="center", color="#777777")


def common_legend(figure: Any, all_axes: Sequence[Any]) -> None:
    """One legend below the figure for everything that is named in any of its pictures."""
    named: dict[str, Any] = {}
    for axes in all_axes:
        handles, labels = axes.get_legend_handles_labels()
        named.update(zip(labels, handles, strict=True))
    if named and len(named) <= LEGEND_LIMIT:
        figure.legend(
            named.values(), named.keys(), loc="outside lower center", ncols=min(len(named), 8), fontsize="small"
        )
