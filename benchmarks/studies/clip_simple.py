"""Learner `clip` (PPO) against `simple` (the paper's text) at several cluster sizes (simulated).

    python -m benchmarks.studies.clip_simple

Both learners train the structured policy with the same seeds, number of cluster windows and other settings
(policy/ppo/settings.py says which of them `simple` reads). Per size, the study reports:

- the mean reward of a window during training, and how far single updates move the policy (KL);
- the time to target accuracy of the trained policy over that of the best rival (proportional, pid, goodput):
  interquartile mean over scenarios and seeds, with the range of single trainings;
- `worst KL`: the largest KL of one update;
- `lost`: how far the mean reward at the end is below its best (means of LAST updates).
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.studies.study import Study, run_study
from benchmarks.studies.trainings import (
    RIVALS,
    LearningRows,
    Training,
    in_words,
    over_trainings,
    relative,
    run_contest,
    shortened,
    train_all,
    without_safety_net,
)
from dynamix_ps.report.plots.style import WORKER_COLOURS
from dynamix_ps.sim.contest.comparison import Array
from dynamix_ps.sim.contest.contest import Contest
from dynamix_ps.sim.contest.pictures import smoothed
from dynamix_ps.sim.scenario.load import load_scenario
from dynamix_ps.sim.training.trainer import TrainSettings

LEARNERS: tuple[Literal["clip", "simple"], ...] = ("clip", "simple")
WINDOWS = {8: 120_000, 32: 80_000, 128: 40_000}  # cluster windows per training, by the number of workers
ENVIRONMENTS = {8: 32, 32: 16, 128: 8}
SCENARIOS = ("homogeneous", "h-level-8", "spot-slowdown")
SEEDS = 3
TRAININGS = 3
LAST = 10  # updates


def measure(quick: bool) -> Study:
    trainings, seeds = (1, 2) if quick else (TRAININGS, SEEDS)
    sizes = {8: 2_000} if quick else WINDOWS
    jobs = [training(learner, n, windows, seed) for n, windows in sizes.items() for learner in LEARNERS
            for seed in range(trainings)]  # fmt: skip
    scenarios = [load_scenario(name) for name in SCENARIOS]
    if quick:
        scenarios = [shortened(scenarios[0])]
    with tempfile.TemporaryDirectory(prefix="dynamix-clip-simple-") as name:
        folder = Path(name)
        learning = train_all(jobs, folder)
        contests = {
            n: run_contest(
                [one.with_workers(n) for one in scenarios],
                RIVALS
                | {job.run: without_safety_net(job.file(folder)) for job in jobs if job.settings.n_workers == (n,)},
                seeds,
            )
            for n in sizes
        }
    return report(learning, contests)


def training(learner: Literal["clip", "simple"], n: int, windows: int, seed: int) -> Training:
    plain = TrainSettings(n_workers=(n,), environments=ENVIRONMENTS[n], total_windows=windows, seed=seed)
    return Training(f"{learner} {n}", replace(plain, learner=replace(plain.learner, learner=learner)))


def report(learning: Mapping[Training, LearningRows], contests: Mapping[int, Contest]) -> Study:
    table, rows = [], []
    for n, contest in contests.items():
        for learner in LEARNERS:
            jobs = [job for job in learning if job.name == f"{learner} {n}"]
            rewards = [column(learning[job], "reward") for job in jobs]
            best, end = zip(*(best_and_end(one) for one in rewards), strict=True)
            found = over_trainings([relative(contest, job.run) for job in jobs])
            reached = [contest.outcomes[job.run, where].reached for job in jobs for where in contest.scenarios]
            table.append(
                {
                    "workers": str(n),
                    "learner": learner,
                    "reward at the end": f"{np.mean(end):.2f} ({min(end):.2f} to {max(end):.2f})",
                    "lost": f"{np.mean(np.subtract(best, end)):.2f}",
                    "worst KL": f"{max(largest_kl(row) for job in jobs for row in learning[job]):.3g}",
                    "relative time": in_words(found),
                    "missed": f"{100 * (1 - float(np.mean(reached))):.0f} %",
                }
            )
        rows += [{"workers": n, **row} for row in contest.rows()]
    return Study(rows, table, lambda figure: draw(figure, learning, list(contests)))


def draw(figure: Any, learning: Mapping[Training, LearningRows], sizes: Sequence[int]) -> None:
    """Top: reward; bottom: KL of every update. One column per size, one line per training."""
    figure.set_size_inches(4 * len(sizes) + 1, 6)
    figure.suptitle("Learners at several cluster sizes (simulated); one line per training")
    grid = figure.subplots(2, len(sizes), squeeze=False, sharex="col")
    for place, n in enumerate(sizes):
        above, below = grid[:, place]
        for colour, learner in zip(WORKER_COLOURS, LEARNERS, strict=False):
            jobs = [job for job in learning if job.name == f"{learner} {n}"]
            for first, job in enumerate(jobs):
                style = {"color": colour, "linewidth": 1.3, "label": learner if not first else None}
                windows = column(learning[job], "windows")
                above.plot(windows, smoothed(column(learning[job], "reward")), **style)
                kl = [largest_kl(row) for row in learning[job]]
                below.plot(windows, np.maximum(kl, 1e-5), **style | {"linewidth": 0.8})
        above.set_title(f"{n} workers", loc="left")
        below.set_yscale("log")
        below.set_xlabel("cluster windows")
        below.xaxis.set_major_formatter("{x:,.0f}")
        below.locator_params(axis="x", nbins=5)
        for axes in (above, below):
            axes.grid(color="#e5e5e5")
    grid[0, 0].set_ylabel("mean reward of a window")
    grid[1, 0].set_ylabel("KL of an update (nats)")
    grid[0, 0].legend(fontsize="small")


def column(rows: LearningRows, name: str) -> Array:
    return np.array([row[name] for row in rows])


def best_and_end(rewards: Array) -> tuple[float, float]:
    """Largest and last mean of LAST updates."""
    span = min(LAST, len(rewards))
    means = np.convolve(rewards, np.ones(span) / span, mode="valid")
    return float(means.max()), float(means[-1])


def largest_kl(row: Mapping[str, float]) -> float:
    """The largest KL of any network in one update."""
    return max(value for name, value in row.items() if name.endswith("/approx_kl"))


if __name__ == "__main__":
    run_study("clip_simple", __doc__, measure)
