"""Plots of learning and of contests, drawn into a matplotlib Figure that the caller makes and saves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dynamix_ps.report.plots.style import WORKER_COLOURS, WORKER_STYLES, nothing
from dynamix_ps.sim.contest.comparison import Array, Estimate

MARKS = ("o", "s", "D", "^", "v", "P", "X", "*")


def learning_curve(figure: Any, rows: Sequence[Mapping[str, float]], title: str) -> None:
    """Reward, entropy, KL and explained variance over the number of windows trained on; one row per update."""
    figure.set_size_inches(11, 6)
    figure.suptitle(f"Learning (simulated): {title}")
    panels = (
        ("reward", "mean reward of a window"),
        ("entropy", "entropy of the actions (nats)"),
        ("approx_kl", "KL from the policy that acted (nats)"),
        ("explained_variance", "explained variance of the critic"),
    )
    for axes, (part, label) in zip(figure.subplots(2, 2, sharex=True).flat, panels, strict=True):
        names = sorted(name for name in (rows[0] if rows else {}) if name == part or name.endswith(f"/{part}"))
        for index, name in enumerate(names):
            values = np.array([row.get(name, np.nan) for row in rows], dtype=float)
            windows = np.array([row["windows"] for row in rows])
            colour = WORKER_COLOURS[index % len(WORKER_COLOURS)]
            axes.plot(windows, values, color=colour, alpha=0.3, linewidth=0.8)
            axes.plot(windows, smoothed(values), color=colour, linewidth=1.8, label=name.removesuffix(f"/{part}"))
        axes.set_ylabel(label)
        axes.grid(color="#e5e5e5")
        if not names:
            nothing(axes)
        elif len(names) > 1:
            axes.legend(fontsize="small")
        if axes.get_subplotspec().is_last_row():
            axes.set_xlabel("cluster windows")
            axes.xaxis.set_major_formatter("{x:,.0f}")


def smoothed(values: Array, span: int = 15) -> Array:
    """Moving mean of the known values over at most `span` neighbours."""
    known = np.isfinite(values)
    kernel = np.ones(min(span, max(len(values), 1)))
    total = np.convolve(np.where(known, values, 0.0), kernel, mode="same")
    count = np.convolve(known.astype(float), kernel, mode="same")
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def dots(figure: Any, rows: Sequence[str], columns: Mapping[str, Sequence[Estimate]], label: str, title: str) -> None:
    """One line per row, one dot with its interval per column; 1 is the reference."""
    figure.set_size_inches(10, 0.42 * len(rows) + 2.2)
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontsize="medium")
    places = np.arange(len(rows))[::-1]
    for index, (name, estimates) in enumerate(columns.items()):
        offset = 0.6 * ((index + 0.5) / len(columns) - 0.5)
        values = np.array([one.value for one in estimates])
        spread = np.array([[one.value - one.low, one.high - one.value] for one in estimates]).T
        colour, mark = WORKER_COLOURS[index % len(WORKER_COLOURS)], MARKS[index % len(MARKS)]
        look = {"color": colour, "marker": mark, "markersize": 5, "linestyle": "none"}
        axes.errorbar(values, places - offset, xerr=np.maximum(spread, 0), label=name, linewidth=1.2, **look)
    axes.axvline(1.0, color="#777777", linewidth=1)
    _log_axis(axes)
    axes.set_yticks(places, rows)
    axes.set_xlabel(label)
    axes.grid(color="#e5e5e5")
    axes.set_axisbelow(True)
    figure.legend(loc="outside lower center", ncols=min(len(columns), 4), fontsize="small")


def lines(axes: Any, series: Mapping[str, tuple[Sequence[float], Sequence[Estimate]]]) -> None:
    """One line with a band for each name; values are (x, estimates)."""
    for index, (name, (places, estimates)) in enumerate(series.items()):
        colour = WORKER_COLOURS[index % len(WORKER_COLOURS)]
        style = WORKER_STYLES[(index // len(WORKER_COLOURS)) % len(WORKER_STYLES)]
        look = {"color": colour, "linestyle": style, "marker": MARKS[index % len(MARKS)], "markersize": 5}
        axes.plot(places, [one.value for one in estimates], linewidth=1.6, label=name, **look)
        low, high = [one.low for one in estimates], [one.high for one in estimates]
        axes.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.grid(color="#e5e5e5")
    axes.set_axisbelow(True)


def _log_axis(axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    ticks = [tick for tick in (0.25, 0.33, 0.5, 0.67, 0.8, 1, 1.25, 1.5, 2, 3, 4, 6, 8, 12, 16) if low <= tick <= high]
    if len(ticks) < 4:  # the range is too narrow for ticks at these places
        ticks = [tick for tick in MaxNLocator(6).tick_values(low, high) if low <= tick <= high]
    axes.set_xticks(ticks)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
