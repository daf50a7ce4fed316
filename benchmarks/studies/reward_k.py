"""Which parts of the reward matter, and how often to decide (simulated).

    python -m benchmarks.studies.reward_k

Small trainings with 8 workers, each with one change: no weight for one term of a reward, the paper's reward for the
structured actions, or another number k of iterations per decision, in training and in use. The figure is the time to
target accuracy over that of the best rival (proportional, pid, goodput, all at k = 20): the interquartile mean over
scenarios and seeds, and the range of single trainings. Below 1 is faster. There is no safety net. `missed` is the part
of the runs that never reach the target.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

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
from dynamix_ps.policy.learned.rewards import GoodputReward, PaperReward
from dynamix_ps.sim.contest.comparison import Estimate
from dynamix_ps.sim.contest.contest import Contest
from dynamix_ps.sim.contest.pictures import dots
from dynamix_ps.sim.scenario.load import Scenario, load_scenario
from dynamix_ps.sim.training.trainer import TrainSettings, paper_settings

K = 20
SCENARIOS = ("homogeneous", "h-level-8", "hl-schedule", "spot-slowdown")
SEEDS = 5
TRAININGS = 2
WINDOWS = 150_000
GOODPUT, PAPER = GoodputReward(), PaperReward()


def variants(windows: int) -> dict[str, TrainSettings]:
    """The settings to compare, by name."""
    structured = TrainSettings(n_workers=(8,), environments=32, total_windows=windows, window=K)
    paper = paper_settings(n_workers=(8,), environments=32, total_windows=windows, window=K)
    return {
        "goodput reward": structured,
        "... without efficiency": replace(structured, reward=replace(GOODPUT, efficiency=0.0)),
        "... without throughput": replace(structured, reward=replace(GOODPUT, throughput=0.0)),
        "... without cost of change": replace(structured, reward=replace(GOODPUT, change=0.0)),
        "... without balance": replace(structured, reward=replace(GOODPUT, balance=0.0)),
        "paper's reward, structured actions": replace(structured, reward=PAPER),
        "k = 5": replace(structured, window=5),
        "k = 10": replace(structured, window=10),
        "k = 40": replace(structured, window=40),
        "k = 80": replace(structured, window=80),
        "paper's reward and actions": paper,
        "... without accuracy gain (alpha)": replace(paper, reward=replace(PAPER, alpha=0.0)),
        "... without iteration time (beta)": replace(paper, reward=replace(PAPER, beta=0.0)),
        "... without size (delta)": replace(paper, reward=replace(PAPER, delta=0.0)),
    }


def measure(quick: bool) -> Study:
    trainings, windows, seeds = (1, 1_500, 2) if quick else (TRAININGS, WINDOWS, SEEDS)
    scenarios = [load_scenario(name) for name in SCENARIOS]
    chosen = list(variants(windows).items())
    if quick:
        scenarios, chosen = [shortened(scenarios[0])], [chosen[0], chosen[6], chosen[10]]
    jobs = [Training(name, replace(settings, seed=seed)) for name, settings in chosen for seed in range(trainings)]
    with tempfile.TemporaryDirectory(prefix="dynamix-reward-k-") as name:
        folder = Path(name)
        train_all(jobs, folder)
        reference = run_contest(scenarios, RIVALS, seeds)
        contests = {
            k: run_contest(
                [at_k(scenario, k) for scenario in scenarios],
                {job.run: without_safety_net(job.file(folder)) for job in jobs if job.settings.window == k},
                seeds,
            )
            for k in sorted({settings.window for _, settings in chosen})
        }
    return report([name for name, _ in chosen], jobs, contests, reference)


def at_k(scenario: Scenario, k: int) -> Scenario:
    """The scenario with a decision after every k iterations and the same limit of iterations."""
    return scenario.model_copy(update={"window": k, "max_windows": scenario.max_windows * scenario.window // k})


def report(names: Sequence[str], jobs: Sequence[Training], contests: dict[int, Contest], reference: Contest) -> Study:
    found: dict[str, Estimate] = {}
    missed: dict[str, float] = {}
    for name in names:
        runs = [(contests[job.settings.window], job.run) for job in jobs if job.name == name]
        found[name] = over_trainings([relative(contest, run, reference) for contest, run in runs])
        arrived = [contest.outcomes[run, where].reached for contest, run in runs for where in contest.scenarios]
        missed[name] = 1 - float(np.mean(arrived))
    rivals = {name: over_trainings([relative(reference, name)]) for name in RIVALS}

    def draw(figure: Any) -> None:
        everything = found | rivals
        title = "Reward terms and k (simulated); bars: single trainings"
        dots(figure, list(everything), {"time": list(everything.values())}, "time to target / best rival's", title)

    rows = [row for contest in (*contests.values(), reference) for row in contest.rows()]
    table = [
        {"trained with": name, "relative time": in_words(one), "missed": f"{100 * missed[name]:.0f} %"}
        for name, one in found.items()
    ]
    table += [
        {"trained with": f"({name})", "relative time": in_words(one), "missed": ""} for name, one in rivals.items()
    ]
    return Study(rows, table, draw)


if __name__ == "__main__":
    run_study("reward_k", __doc__, measure)
