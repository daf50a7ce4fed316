"""Figures, tables and picture of the study of many workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.report.page import markdown
from benchmarks.studies.kept_rows import Row, contest_of
from benchmarks.studies.study import Report
from dynamix_ps.report.plots.style import WORKER_COLOURS
from dynamix_ps.sim.contest.comparison import Array, Estimate
from dynamix_ps.sim.contest.contest import Contest
from dynamix_ps.sim.contest.pictures import lines, smoothed

REFERENCE, AGENT, STATIC = "model", "ppo", "static"
OVER_STATIC = f"{AGENT} / {STATIC}"
LEARNING = ("reward", "lost", "reward_swing", "worst_kl")


@dataclass(frozen=True, slots=True)
class Times:
    """Of one contender on one cluster.

    Attributes:
        over_model, over_static: time over that of another one, geometric means. Low and high are single seeds, of a
            learner single trainings: two seeds tell nothing of their scatter.
        time_s: geometric mean.
        missed: part of the runs that never reached the target.
    """

    over_model: Estimate
    over_static: Estimate
    time_s: float
    missed: float


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one contender with so many workers.

    Attributes:
        on: times on each cluster.
        moved, swing, waiting: means over runs on all clusters.
        learning: of a learner, by the names of LEARNING: one value per training.
    """

    on: Mapping[str, Times]
    moved: float
    swing: float
    waiting: float
    learning: Mapping[str, list[float]]


Found = Mapping[int, Mapping[str, Figures]]  # by workers and contender
Curves = Mapping[tuple[int, str], Sequence[Array]]


def report(rows: Sequence[Row]) -> Report:
    """What all rows say."""
    found = figures_of(rows)
    told = {
        str(workers): {name: dataclasses.asdict(one) for name, one in of_all.items()}
        for workers, of_all in found.items()
    }
    return Report(tables(found), lambda figure: picture(figure, found, curves_of(rows)), told)


def figures_of(rows: Sequence[Row]) -> Found:
    """All figures, from rows as they are in memory or as a file gives them back."""
    found: dict[int, dict[str, Figures]] = {}
    for workers in sorted({int(row["workers"]) for row in rows}):
        here = [row for row in rows if int(row["workers"]) == workers]
        contests = [contest_of(here, name) for name in dict.fromkeys(row["scenario"] for row in here)]
        found[workers] = {name: _figures(here, contests, name) for name in dict.fromkeys(r["contender"] for r in here)}
    return found


def _figures(rows: Sequence[Row], contests: Sequence[Contest], contender: str) -> Figures:
    mine = [row for row in rows if row["contender"] == contender]
    runs = list(dict.fromkeys(row["policy"] for row in mine))
    first_rows = {row["policy"]: row for row in mine if row["reward"]}
    return Figures(
        on={one.scenarios[0]: _times(one, runs) for one in contests},
        **{name: float(np.mean([float(row[name]) for row in mine])) for name in ("moved", "swing", "waiting")},
        learning={name: [float(row[name]) for row in first_rows.values()] for name in LEARNING} if first_rows else {},
    )


def _times(contest: Contest, runs: Sequence[str]) -> Times:
    """`runs`: the contender, or all trainings of it."""
    (cluster,) = contest.scenarios
    log_s = np.stack([np.log(contest.counted_s(run, cluster)) for run in runs])
    over_model, over_static = (
        _range_of(log_s - np.log(contest.counted_s(reference, cluster))) for reference in (REFERENCE, STATIC)
    )
    reached = [contest.outcomes[run, cluster].reached for run in runs]
    return Times(over_model, over_static, float(np.exp(log_s.mean())), 1 - float(np.mean(reached)))


def _range_of(logs: Array) -> Estimate:
    """Of logarithms (trainings, seeds): the geometric mean, the smallest and the largest one."""
    each = np.exp(logs.mean(axis=1) if len(logs) > 1 else logs[0])
    return Estimate(float(np.exp(logs.mean())), float(each.min()), float(each.max()))


def curves_of(rows: Sequence[Row]) -> Curves:
    """Reward of every update, by workers and learner; one array per training."""
    found: dict[tuple[int, str], list[Array]] = {}
    for row in rows:
        if row["rewards"]:
            rewards = np.array([float(one) for one in row["rewards"].split()])
            found.setdefault((int(row["workers"]), row["contender"]), []).append(rewards)
    return found


def tables(found: Found) -> str:
    """Times, what happens in use, and what happened while learning, in Markdown."""
    times, use, learned = [], [], []
    for cluster in next(iter(next(iter(found.values())).values())).on:
        for workers, of_all in found.items():
            on = {name: one.on[cluster] for name, one in of_all.items()}
            head = {"cluster": f"`{cluster}`", "workers": f"{workers:,}"}
            figures = {
                f"{REFERENCE}, s": f"{on[REFERENCE].time_s:,.0f}",
                OVER_STATIC: _range_in_words(on[AGENT].over_static),
            }
            times.append(head | figures | {name: _time_in_words(one) for name, one in on.items() if name != REFERENCE})
    for workers, of_all in found.items():
        head = {"workers": f"{workers:,}"}
        use.append(head | {name: f"{one.swing:.3f}, {100 * one.moved:.1f} %" for name, one in of_all.items()})
        learned += [
            head | {"learner": name} | {column: _range(one.learning[column]) for column in LEARNING}
            for name, one in of_all.items()
            if one.learning
        ]
    return "\n\n".join(
        (
            f"Time of `{AGENT}` to the target over that of the best fixed size, and of each over that of the model:"
            f"\n\n{markdown(times)}",
            f"Swing of the return, and how far sizes move from window to window:\n\n{markdown(use)}",
            f"While they learn, mean over trainings and their range:\n\n{markdown(_named(learned))}",
        )
    )


def over_static(found: Found, cluster: str) -> str:
    """The smallest and the largest time of the agent over that of the best fixed size, over all sizes of a cluster."""
    values = [of_all[AGENT].on[cluster].over_static.value for of_all in found.values()]
    return f"{min(values):.2f} to {max(values):.2f}"


def _named(rows: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    titles = dict(
        zip(LEARNING, ("reward at the end", "below its best", "swing of the reward", "largest KL"), strict=True)
    )
    return [{titles.get(name, name): value for name, value in row.items()} for row in rows]


def _time_in_words(one: Times) -> str:
    return _range_in_words(one.over_model) + (f", {100 * one.missed:.0f} % missed" if one.missed else "")


def _range_in_words(one: Estimate) -> str:
    value, low, high = (f"{number:.2f}" for number in (one.value, one.low, one.high))
    return value if low == high else f"{value} ({low} to {high})"


def _range(values: Sequence[float]) -> str:
    return f"{np.mean(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def picture(figure: Any, found: Found, curves: Curves) -> None:
    """Top: time on each cluster, swing of the return, movement by workers; bottom: rewards at three sizes."""
    figure.set_size_inches(15, 7.5)
    figure.suptitle("Clusters whose links and speeds change all the time (simulated)")
    clusters = list(found[next(iter(found))][REFERENCE].on)
    grid = figure.subplots(2, 2 + len(clusters))
    sizes = list(found)
    names = list(next(iter(found.values())))
    panels = (
        *(
            (
                f"time over the model's, {cluster}",
                {n: [found[s][n].on[cluster].over_model for s in sizes] for n in names},
            )
            for cluster in clusters
        ),
        ("swing of the return (log2)", {n: [_point(found[size][n].swing) for size in sizes] for n in names}),
        ("change of a size per window, %", {n: [_point(100 * found[size][n].moved) for size in sizes] for n in names}),
    )
    for axes, (label, series) in zip(grid[0], panels, strict=True):
        lines(axes, {name: (sizes, values) for name, values in series.items()})
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.set_xlabel("workers")
        axes.set_ylabel(label)
    grid[0, 0].legend(fontsize="small")
    learned = sorted({workers for workers, _ in curves})
    shown = (learned[0], learned[len(learned) // 2], learned[-1])
    for unused in grid[1, len(shown) :]:
        unused.axis("off")
    for axes, workers in zip(grid[1], shown, strict=False):
        for place, learner in enumerate(names):
            for number, curve in enumerate(curves.get((workers, learner), [])):
                named = {} if number else {"label": learner}
                axes.plot(smoothed(curve, 3), color=WORKER_COLOURS[place], linewidth=1.2, **named)
        axes.set_title(f"{workers:,} workers", loc="left", fontsize="medium")
        axes.set_xlabel("updates")
        axes.set_ylabel("mean reward of a window")
        axes.grid(color="#e5e5e5")
    grid[1, 0].legend(fontsize="small")


def _point(value: float) -> Estimate:
    return Estimate(value, value, value)
