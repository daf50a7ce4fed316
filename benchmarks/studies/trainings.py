"""Policies trained for a study, and one that has learned nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from benchmarks.suite.contenders import NO_SAFETY_NET
from dynamix_ps.config.schema import PolicySection, Ppo
from dynamix_ps.policy.learned.spaces import fresh_networks, policy_spec
from dynamix_ps.policy.ppo.policy_file import StoredPolicy, save_policy
from dynamix_ps.policy.ppo.settings import PpoSettings
from dynamix_ps.sim.parallel import parallel
from dynamix_ps.sim.scenario.load import Scenario
from dynamix_ps.sim.training.scenario_draw import draw_from
from dynamix_ps.sim.training.trainer import PolicyTrainer, TrainSettings
from dynamix_ps.terminal import progress_bar

SEED = 1000  # of everything except the trainings

LearningRows = list[dict[str, float]]  # one per update; `windows` is among the names


@dataclass(frozen=True, slots=True)
class Training:
    """One training. Trainings of the same name differ in their seeds."""

    name: str
    settings: TrainSettings
    scenarios: tuple[Scenario, ...] = ()  # clusters to train on; empty: the full variety

    @property
    def run(self) -> str:
        """Name and seed."""
        return f"{self.name} {self.settings.seed}"

    def file(self, folder: Path) -> Path:
        """The file of its policy after it has ended."""
        return folder / f"{self.run}.npz"


@dataclass(frozen=True, slots=True)
class _Job:
    training: Training
    folder: Path


def train_all(trainings: Sequence[Training], folder: Path) -> dict[Training, LearningRows]:
    """Run all trainings, each in its own process, and save the policies in `folder`."""
    jobs = [_Job(training, folder) for training in trainings]
    console = Console(stderr=True)
    rows: dict[Training, LearningRows] = {}
    with progress_bar(console) as bar:
        for index, found in bar.track(parallel(_train, jobs), total=len(jobs), description="trainings"):
            rows[trainings[index]] = found
    return {training: rows[training] for training in trainings}


def _train(job: _Job) -> LearningRows:
    return train(job.training, job.folder)


def train(training: Training, folder: Path) -> LearningRows:
    """Run one training here, and save its policy in `folder`."""
    draw = draw_from(training.scenarios) if training.scenarios else None
    trainer = PolicyTrainer(training.settings, np.random.default_rng(training.settings.seed), draw_=draw)
    rows = []
    began_s = time.monotonic()
    while not trainer.finished:
        rows.append(dict(trainer.iterate()) | {"windows": float(trainer.windows)})
    save_policy(training.file(folder), trainer.stored({"seconds": round(time.monotonic() - began_s, 1)}))
    return rows


def shortened(scenario: Scenario) -> Scenario:
    """The scenario for --quick, with too few windows to reach the target."""
    return scenario.model_copy(update={"max_windows": 20})


def untrained(file: Path) -> PolicySection:
    """A structured policy that has learned nothing: it follows the model's advice."""
    spec = policy_spec("structured", Ppo().hidden)
    fresh = fresh_networks(spec, PpoSettings(), np.random.default_rng(0))
    networks = {name: agent.weights for name, agent in fresh.items()}
    save_policy(file, StoredPolicy(networks, spec, {"origin": "untrained"}))
    return PolicySection(name="ppo", ppo=Ppo(file=str(file)), safety=NO_SAFETY_NET)
