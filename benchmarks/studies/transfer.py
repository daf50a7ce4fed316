"""Policies trained on one family of clusters, used on another (simulated).

    python -m benchmarks.studies.transfer

All families have the same clusters (SCENARIOS, 8 workers) but train something else on them:

- `sgd`: a small CNN with SGD, as in the scenario files; the learning rate follows AdaScale.
- `adam`: the same model with Adam; the learning rate follows sqrt(B/B0), and the noise scale begins higher and grows
  less (chosen by us; Adam's preconditioning evens out the gradient's noise).
- `large`: a model ten times as large, with ten times the computing and bytes and three times the noise scale.
- `transformer`: the profile of that name (sim/scenario/parts.py), with a higher noise scale, slower decay, twice the
  computing and four times the bytes.

The events of a scenario stretch with its computing time. Policies train on one family alone, or on `everything`
(sim/cluster/randomise.py), and run on all families. The figure is the time to target accuracy over that of the best
rival (proportional, pid, goodput) in the same family: the interquartile mean over scenarios and seeds, and the range of
single trainings. Below 1 is faster. There is no safety net.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
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
from dynamix_ps.sim.contest.comparison import Estimate
from dynamix_ps.sim.contest.contest import Contest
from dynamix_ps.sim.contest.pictures import dots
from dynamix_ps.sim.scenario.load import Scenario, load_scenario
from dynamix_ps.sim.scenario.parts import PROFILES
from dynamix_ps.sim.training.trainer import TrainSettings

SCENARIOS = ("homogeneous", "h-level-8", "bandwidth-drop", "spot-slowdown")
SEEDS = 5
TRAININGS = 2
WINDOWS = 200_000
TRANSFORMER_TARGET = 0.46
EVERYTHING = "everything"  # the full variety of sim/cluster/randomise.py


def families(names: Sequence[str]) -> dict[str, tuple[Scenario, ...]]:
    """Scenarios by family."""
    plain = [load_scenario(name) for name in names]
    return {
        "sgd": tuple(plain),
        "adam": tuple(trained(one, lr_rule="sqrt", noise_scale=3.0, noise_growth=0.6) for one in plain),
        "large": tuple(trained(heavier(one, 10, 10), noise_scale=3.0) for one in plain),
        "transformer": tuple(as_transformer(heavier(one, 2, 4)) for one in plain),
    }


def trained(
    scenario: Scenario, lr_rule: str = "adascale", noise_scale: float = 1.0, noise_growth: float = 1.0
) -> Scenario:
    """The scenario with another learning-rate rule, and with factors on the noise scale and its growth."""
    training = scenario.training
    changed = {"noise_scale": training.noise_scale * noise_scale, "noise_growth": training.noise_growth * noise_growth}
    return scenario.model_copy(update={"training": training.model_copy(update=changed), "lr_rule": lr_rule})


def as_transformer(scenario: Scenario) -> Scenario:
    """The scenario with the transformer's profile; its new target takes a similar number of windows."""
    training = scenario.training.model_copy(update=PROFILES["transformer"])
    return scenario.model_copy(update={"training": training, "target_accuracy": TRANSFORMER_TARGET})


def heavier(scenario: Scenario, computing: float, model: float) -> Scenario:
    """The scenario with factors on computing and bytes; its events take `computing` times as long."""

    def later(change: Any) -> Any:
        names = [name for name in ("at_s", "until_s", "every_s", "for_s") if getattr(change, name, None) is not None]
        return change.model_copy(update={name: getattr(change, name) * computing for name in names})

    workers = tuple(
        worker.model_copy(
            update={"fixed_s": worker.fixed_s * computing, "per_sample_s": worker.per_sample_s * computing}
        )
        for worker in scenario.workers
    )
    return scenario.model_copy(
        update={
            "workers": workers,
            "model_bytes": scenario.model_bytes * model,
            "drift_s": scenario.drift_s * computing,
            "trace": tuple(later(event) for event in scenario.trace),
            "bursts": tuple(later(burst) for burst in scenario.bursts),
        }
    )


def measure(quick: bool) -> Study:
    trainings, windows, seeds = (1, 1_500, 2) if quick else (TRAININGS, WINDOWS, SEEDS)
    sources = families(SCENARIOS)
    if quick:
        sources = {name: (shortened(scenarios[0]),) for name, scenarios in list(sources.items())[:2]}
    settings = [
        TrainSettings(n_workers=(8,), environments=32, total_windows=windows, seed=seed) for seed in range(trainings)
    ]
    domains = {**sources, EVERYTHING: ()}
    jobs = [Training(source, one, scenarios) for source, scenarios in domains.items() for one in settings]
    with tempfile.TemporaryDirectory(prefix="dynamix-transfer-") as name:
        folder = Path(name)
        train_all(jobs, folder)
        policies = {job.run: without_safety_net(job.file(folder)) for job in jobs}
        contests = {target: run_contest(scenarios, RIVALS | policies, seeds) for target, scenarios in sources.items()}
    return report(jobs, contests)


def report(jobs: Sequence[Training], contests: dict[str, Contest]) -> Study:
    members = {job.name: [one.run for one in jobs if one.name == job.name] for job in jobs}
    members |= {name: [name] for name in RIVALS}
    found: dict[str, list[Estimate]] = {
        name: [over_trainings([relative(contest, run) for run in runs]) for contest in contests.values()]
        for name, runs in members.items()
    }

    def draw(figure: Any) -> None:
        columns = {name: estimates for name, estimates in found.items() if name not in RIVALS}
        label = "time to target / best rival's (log scale; left is faster)"
        title = "Used on (rows), trained on (marks); simulated; bars: single trainings"
        dots(figure, list(contests), columns, label, title)

    rows = [{"family": target, **row} for target, contest in contests.items() for row in contest.rows()]
    table = [
        {"trained on": f"({name})" if name in RIVALS else name}
        | {f"used on {target}": in_words(one) for target, one in zip(contests, estimates, strict=True)}
        for name, estimates in found.items()
    ]
    return Study(rows, table, draw)


if __name__ == "__main__":
    run_study("transfer", __doc__, measure)
