"""What the study of the paper's readings runs: workloads, clusters, rates, contenders, and their cells.

A workload with a rate on a cluster is a group, and no two groups share a seed. The rate is part of a workload's name
here, because targets of accuracy depend on it.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.studies.rehearsed_cells import Cell, Name, Workplace, cell_of
from benchmarks.studies.trainings import Training, train_all
from benchmarks.suite.contenders import NO_SAFETY_NET, Contender, contender
from benchmarks.suite.workloads import Workload, load_workload
from dynamix_ps.config.schema import PolicySection, Ppo
from dynamix_ps.policy.learned.paper import PAPER_BOUNDS
from dynamix_ps.policy.learned.rewards import PaperReward
from dynamix_ps.policy.ppo.policy_file import load_policy, save_policy
from dynamix_ps.sim.scenario.load import Scenario, load_scenario
from dynamix_ps.sim.training.trainer import paper_settings

# VGG11 of an eighth of the width and ResNet8 of half of it, 40,000 samples of CIFAR-10
MODELS = {"cifar-vgg11": "vgg11-thin", "cifar-resnet": "resnet8-thin"}
SHORTENED = {"epochs": 2, "eval_samples": 4000, "test_samples": 1000}
CLUSTERS = ("homogeneous", "h-level-8")  # equal workers, mixed ones
RATES = (1.0, 0.25)  # of the workload's, which was tuned
WORKERS = 4
SEEDS = 3  # of every group
BETWEEN_GROUPS = 100  # seeds
FIRST_SIZE = 64  # of every worker

PER_ITERATION, PER_SAMPLE = "paper, per iteration", "paper, per sample"
READINGS = (PER_ITERATION, PER_SAMPLE)
STATICS = {"static-32": 32, "static-64": 64, "static-128": 128}  # of the paper's figure 2, second hand
CONTENDERS = (*STATICS, *READINGS)

TRAINING = paper_settings(reward=PaperReward(time="per_sample"), total_windows=300_000)  # of the second reading


class Group(NamedTuple):
    """Runs that differ in their contender and their seed alone."""

    model: str  # of MODELS
    rate: float  # of RATES
    cluster: str  # of CLUSTERS

    @property
    def workload(self) -> str:
        """In the names of cells."""
        return f"{self.model}, rate x{self.rate:g}"


GROUPS = tuple(Group(model, rate, cluster) for model in MODELS for rate in RATES for cluster in CLUSTERS)


def cells(quick: bool, file: Path) -> list[Cell]:
    """All cells, seed by seed, so that a study that is cut off has some pairs of every group.

    Args:
        quick: the first seed of the first workload alone.
        file: the policy of the second reading.
    """
    return [
        _cell(group, one, BETWEEN_GROUPS * place + number, file)
        for number in range(1 if quick else SEEDS)
        for place, group in enumerate(GROUPS)
        if not quick or group.workload == GROUPS[0].workload
        for one in CONTENDERS
    ]


def _cell(group: Group, name: str, seed: int, file: Path) -> Cell:
    place = Workplace(_shortened(group.model), _cluster(group.cluster), (FIRST_SIZE,) * WORKERS)
    chosen = dataclasses.replace(_contender(name, file), lr_factor=group.rate)
    return cell_of(Name(group.workload, group.cluster, name, seed), place, chosen)


def _shortened(model: str) -> Workload:
    """A workload of the suite with fewer samples, and the bounds of the paper's sizes."""
    low, high = PAPER_BOUNDS
    changes = {**SHORTENED, "model": MODELS[model], "min": low, "max": high}
    return load_workload(model).model_copy(update=changes)


def _cluster(name: str) -> Scenario:
    """With the gradient of the scenario, 20 MB. That of the thin models is so small that it takes no time."""
    scenario = load_scenario(name).with_workers(WORKERS)
    return scenario.model_copy(update={"model_bytes": scenario.model_bytes})  # what is named counts


def _contender(name: str, file: Path) -> Contender:
    """One of CONTENDERS; those of the paper without a safety net."""
    if name == PER_ITERATION:
        return contender("ppo-paper")
    if name == PER_SAMPLE:
        ppo = Ppo(space="paper", time="per_sample", file=str(file.absolute()))
        return dataclasses.replace(
            contender("ppo-paper"), policy=PolicySection(name="ppo", ppo=ppo, safety=NO_SAFETY_NET)
        )
    return contender(name)


def train_reading(file: Path) -> None:
    """Train the policy of the second reading, with a fixed seed, and save what acting needs of it."""
    with tempfile.TemporaryDirectory(prefix="dynamix-") as folder:
        training = Training("per-sample", TRAINING)
        train_all([training], Path(folder))
        stored = load_policy(training.file(Path(folder)), None)
    networks = {name: dataclasses.replace(weights, adam=None) for name, weights in stored.networks.items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    save_policy(file, dataclasses.replace(stored, networks=networks))
