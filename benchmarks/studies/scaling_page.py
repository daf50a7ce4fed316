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
from benchmarks.studies.trainings import over_trainings
from dynamix_ps.report.plots.style import WORKER_COLOURS
from dynamix_ps.sim.contest.comparison import Array, Estimate, estimate, interquartile_mean
from dynamix_ps.sim.contest.contest import Contest
from dynamix_ps.sim.contest.pictures import lines, smoothed

REFERENCE = "model"
LEARNING = ("reward", "lost", "reward_swing", "worst_kl")


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one contender with so many workers.

    Attributes:
        over_model: time over that of the model. Of a learner: low and high are single trainings, else an interval.
        time_s: interquartile mean.
        missed: part of the runs that never reached the target.
        moved, swing, waiting: means over runs.
        learning: of a learner, by the names of LEARNING: one value per training.
    """

    over_model: Estimate
    time_s: float
    missed: float
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
    ratios = [_over(contests, run, REFERENCE) for run in runs]
    times_s = np.concatenate([np.stack([_counted_s(one, run) for one in contests]) for run in runs], axis=-1)
    first_rows = {row["policy"]: row for row in mine if row["reward"]}
    return Figures(
        over_model=over_trainings(ratios) if len(runs) > 1 else estimate(interquartile_mean, *ratios, rng=_rng()),
        time_s=float(interquartile_mean(times_s)),
        missed=1 - float(np.mean([str(row["reached"]) == "True" for row in mine])),
        **{name: float(np.mean([float(row[name]) for row in mine])) for name in ("moved", "swing", "waiting")},
        learning={name: [float(row[name]) for row in first_rows.values()] for name in LEARNING} if first_rows else {},
    )


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def _counted_s(contest: Contest, policy: str) -> Array:
    (scenario,) = contest.scenarios
    return contest.counted_s(policy, scenario)


def _over(contests: Sequence[Contest], policy: str, reference: str) -> Array:
    """Times over those of the reference, (clusters, seeds)."""
    return np.stack([_counted_s(one, policy) / _counted_s(one, reference) for one in contests])


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
    for workers, of_all in found.items():
        head = {"workers": f"{workers:,}"}
        reference = {f"{REFERENCE}, s": f"{of_all[REFERENCE].time_s:,.0f}"}
        others = {name: one for name, one in of_all.items() if name != REFERENCE}
        times.append(head | reference | {name: _time_in_words(one) for name, one in others.items()})
        use.append(head | {name: f"{one.swing:.3f}, {100 * one.moved:.1f} %" for name, one in of_all.items()})
        learned += [
            head | {"learner": name} | {column: _range(one.learning[column]) for column in LEARNING}
            for name, one in of_all.items()
            if one.learning
        ]
    return "\n\n".join(
        (
            f"Time to target over that of the model:\n\n{markdown(times)}",
            f"Swing of the return, and how far sizes move from window to window:\n\n{markdown(use)}",
            f"While they learn, mean over trainings and their range:\n\n{markdown(_named(learned))}",
        )
    )


def _named(rows: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    titles = dict(
        zip(LEARNING, ("reward at the end", "below its best", "swing of the reward", "largest KL"), strict=True)
    )
    return [{titles.get(name, name): value for name, value in row.items()} for row in rows]


def _time_in_words(one: Figures) -> str:
    around = (one.over_model.low, one.over_model.high)
    text = f"{one.over_model.value:.2f}"
    if one.learning:
        text += f" ({around[0]:.2f} to {around[1]:.2f})" if around[0] < around[1] else ""
    else:
        text += f" [{around[0]:.2f}, {around[1]:.2f}]"
    return text + (f", {100 * one.missed:.0f} % missed" if one.missed else "")


def _range(values: Sequence[float]) -> str:
    return f"{np.mean(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def picture(figure: Any, found: Found, curves: Curves) -> None:
    """Top: time, swing of the return, movement by workers; bottom: reward of every update at three sizes."""
    figure.set_size_inches(12, 7.5)
    figure.suptitle("Clusters whose links and speeds change all the time (simulated)")
    grid = figure.subplots(2, 3)
    sizes = list(found)
    names = list(next(iter(found.values())))
    panels = (
        ("time to target over the model's", {n: [found[size][n].over_model for size in sizes] for n in names}),
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
    for axes, workers in zip(grid[1], shown, strict=True):
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
