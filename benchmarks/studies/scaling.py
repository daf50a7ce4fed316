"""Policies trained with 8 workers, used with 8 to 1,024 (simulated).

    python -m benchmarks.studies.scaling

The policies have only seen clusters of 8 workers. They run on larger copies of the same clusters: every worker keeps
its speed and link, while the servers' bandwidth, the noise scale and the data set grow with the number of workers
(Scenario.with_workers). The figure is the time to target accuracy over that of the best rival (proportional, pid,
goodput) of the same scenario and size: the interquartile mean over scenarios and seeds, and the range of single
trainings. Below 1 is faster. There is no safety net.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.studies.study import Study, run_study
from benchmarks.studies.trainings import (
    RIVALS,
    Training,
    in_words,
    over_trainings,
    relative,
    run_contest,
    shortened,
    train_all,
    without_safety_net,
)
from dynamix_ps.sim.contest.contest import Contest
from dynamix_ps.sim.contest.pictures import lines
from dynamix_ps.sim.scenario.load import load_scenario
from dynamix_ps.sim.training.trainer import TrainSettings

TRAINED_AT = 8
SIZES = (8, 16, 32, 64, 128, 256, 1024)
SCENARIOS = ("h-level-8", "noisy-neighbour", "spot-slowdown")
SEEDS = 3  # per scenario and size
TRAININGS = 2
WINDOWS = 250_000
LEARNED = f"ppo, trained with {TRAINED_AT} workers"


def measure(quick: bool) -> Study:
    trainings, windows = (2, 2_000) if quick else (TRAININGS, WINDOWS)
    sizes, seeds = ((8, 16), 2) if quick else (SIZES, SEEDS)
    scenarios = [load_scenario(name) for name in SCENARIOS]
    if quick:
        scenarios = [shortened(scenarios[0])]
    jobs = [
        Training(LEARNED, TrainSettings(n_workers=(TRAINED_AT,), total_windows=windows, seed=seed))
        for seed in range(trainings)
    ]
    with tempfile.TemporaryDirectory(prefix="dynamix-scaling-") as name:
        folder = Path(name)
        train_all(jobs, folder)
        policies = {job.run: without_safety_net(job.file(folder)) for job in jobs}
        contests = {
            size: run_contest([one.with_workers(size) for one in scenarios], RIVALS | policies, seeds) for size in sizes
        }
    return report(contests, list(policies))


def report(contests: dict[int, Contest], learned: list[str]) -> Study:
    """Figures of all sizes, for the policies of all trainings and for every rival."""
    members = {LEARNED: learned} | {name: [name] for name in RIVALS}
    found = {
        name: [over_trainings([relative(contest, run) for run in runs]) for contest in contests.values()]
        for name, runs in members.items()
    }

    def draw(figure: Any) -> None:
        figure.set_size_inches(8, 4.6)
        axes = figure.subplots()
        lines(axes, {name: (list(contests), estimates) for name, estimates in found.items()})
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(contests), [f"{size:,}" for size in contests])
        axes.set_ylim(bottom=0)
        axes.set_xlabel("workers")
        axes.set_ylabel("time to target / best rival's (below 1 is faster)")
        axes.set_title("Policies trained with 8 workers (simulated); band: single trainings", loc="left", fontsize=10)
        axes.legend(fontsize="small")

    rows = [{"workers": size, **row} for size, contest in contests.items() for row in contest.rows()]
    table = [
        {"workers": f"{size:,}"} | {name: in_words(estimates[place]) for name, estimates in found.items()}
        for place, size in enumerate(contests)
    ]
    return Study(rows, table, draw)


if __name__ == "__main__":
    run_study("scaling", __doc__, measure)
