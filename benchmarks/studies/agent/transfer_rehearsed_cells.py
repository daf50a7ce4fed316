"""What the study of transfer on real gradients runs and asks: directions, policies, clusters, contenders, questions.

A direction is a workload with two policies: one trained at home, in the simulated family that the workload is like, and
one trained away, in another family (families.py). Both learned on the same clusters for as long.
"""

from __future__ import annotations

import dataclasses
import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from benchmarks.studies.agent.cells import BEST_STATIC, NOISE_SCALES, STATICS, Bar, Question
from benchmarks.studies.agent.cells import WORKLOADS as SHORTENED
from benchmarks.studies.agent.clusters import cluster_for
from benchmarks.studies.agent.families import SCENARIOS, WINDOWS, families, heavier
from benchmarks.studies.rehearsed_cells import Cell, Name, Workplace, cell_of, digest_file
from benchmarks.studies.trainings import Training, train_all, untrained
from benchmarks.suite.contenders import CONTENDERS, Contender
from benchmarks.suite.workloads import Workload
from dynamix_ps.config.schema import PolicySection, Ppo
from dynamix_ps.errors import UsageError
from dynamix_ps.policy.ppo.policy_file import load_policy, save_policy
from dynamix_ps.rehearsal.outcome import EvaluationTarget
from dynamix_ps.sim.scenario.load import Scenario, load_scenario
from dynamix_ps.sim.training.trainer import TrainSettings

Family = Literal["sgd", "adam", "large", "transformer"]  # of families.py

SETTINGS = TrainSettings(n_workers=(8,), environments=32, total_windows=WINDOWS)
CLUSTERS = ("h-level-8", "spot-slowdown")  # of those on which the policies learned
WORKERS = 8
SEEDS = 2  # of each direction on each cluster
BETWEEN_CLUSTERS = 100  # seeds; no two clusters share one

VGG, VGG_ADAM, VGG_WIDE = "cifar-vgg11", "cifar-vgg11-adam", "cifar-vgg11-wide"
CLASSIFIER, GPT = "cifar-transformer", "text-gpt"
WIDER = 4  # times the parameters and the computing of VGG

# Learning rates are the best of four, targets what the first sizes reach after about 30, 45 and 60 percent of the
# samples, in one training each, as in workloads.yaml.
WORKLOADS: Mapping[str, Workload] = {
    VGG: SHORTENED[VGG],
    VGG_ADAM: SHORTENED[VGG].model_copy(
        update={"optimizer": "adam", "lr": {"adam": 0.002}, "thresholds": (1.81, 1.75, 1.64)}
    ),
    VGG_WIDE: SHORTENED[VGG].model_copy(
        update={"model": "vgg11-slim", "lr": {"sgd": 0.015}, "thresholds": (1.85, 1.80, 1.70)}
    ),
    CLASSIFIER: SHORTENED[CLASSIFIER],
    GPT: SHORTENED[GPT],
}


class Direction(NamedTuple):
    """From where to where."""

    title: str
    workload: str
    home: Family
    away: Family


DIRECTIONS = (
    Direction("CNN to GPT", GPT, "transformer", "sgd"),
    Direction("CNN to Transformer classifier", CLASSIFIER, "transformer", "sgd"),
    Direction("Transformer to CNN", VGG, "sgd", "transformer"),
    Direction("SGD to Adam", VGG_ADAM, "adam", "sgd"),
    Direction("small to large", VGG_WIDE, "large", "sgd"),
)

HOME, AWAY, SHIPS, MODEL = "home", "away", "ppo", "model"
CHOOSING = (HOME, AWAY, SHIPS, MODEL)
QUESTIONS = (
    Question("transfer", AWAY, HOME, CLUSTERS, SEEDS, bar=Bar(1.05)),
    Question("transfer", SHIPS, HOME, CLUSTERS, SEEDS),
    Question("transfer", AWAY, SHIPS, CLUSTERS, SEEDS),
    Question("what learning adds", HOME, MODEL, CLUSTERS, SEEDS),
    Question("what learning adds", AWAY, MODEL, CLUSTERS, SEEDS),
    Question("against the best fixed size", HOME, BEST_STATIC, CLUSTERS, SEEDS),
    Question("against the best fixed size", AWAY, BEST_STATIC, CLUSTERS, SEEDS),
)


def are_known(folder: Path) -> bool:
    """Whether rows can be told by the policies that made them; the policies themselves need not be there."""
    return all(digest_file(policy_file(folder, name)).exists() for name in families(SCENARIOS))


def train_policies(folder: Path) -> None:
    """Train the policies that have no file, with a fixed seed, and save what acting needs of them.

    Raises:
        UsageError: one of them is not the policy that made the rows that are kept.
    """
    sources = families(SCENARIOS)
    missing = [name for name in sources if not policy_file(folder, name).exists()]
    if not missing:
        return
    with tempfile.TemporaryDirectory(prefix="dynamix-") as scratch:
        trainings = [Training(name, SETTINGS, sources[name]) for name in missing]
        train_all(trainings, Path(scratch))
        folder.mkdir(parents=True, exist_ok=True)
        for training in trainings:
            stored = load_policy(training.file(Path(scratch)), None)
            networks = {name: dataclasses.replace(weights, adam=None) for name, weights in stored.networks.items()}
            file = policy_file(folder, training.name)
            save_policy(file, dataclasses.replace(stored, networks=networks))
            _check(file)


def _check(file: Path) -> None:
    """Keep the digest of a policy's weights, or compare it with the one that is kept."""
    with np.load(file) as arrays:
        weights = b"".join(arrays[name].tobytes() for name in sorted(arrays) if "/" in name)
    kept, found = digest_file(file), f"{hashlib.sha256(weights).hexdigest()}\n"
    if kept.exists() and (expected := kept.read_text(encoding="utf-8")) != found:
        raise UsageError(
            f"{file}: expected SHA-256 {expected.strip()}, found {found.strip()}: trained again, this policy is not "
            f"the one that made the rows that are kept; delete {file.parent} to run all of them anew"
        )
    kept.write_text(found, encoding="utf-8")


def policy_file(folder: Path, family: str) -> Path:
    return folder.absolute() / f"{family}.npz"


def cells(quick: bool, policies: Path, folder: Path) -> list[Cell]:
    """All cells, direction by direction, so that a study that is cut off has whole ones.

    Args:
        quick: the first seed of the first direction on the first cluster alone.
        policies: has the files of the trained policies.
        folder: gets the file of the policy that has learned nothing.
    """
    model = untrained(folder / "untrained.npz")
    found = [
        _cell(Name(direction.workload, cluster, one, BETWEEN_CLUSTERS * place + number), chosen)
        for place, cluster in enumerate(CLUSTERS)
        for direction in DIRECTIONS
        for number in range(SEEDS)
        for one, chosen in contenders(direction, policies, model).items()
    ]
    first = found[0].name
    return [cell for cell in found if cell.name[:2] == first[:2] and cell.name.seed == first.seed] if quick else found


def contenders(direction: Direction, policies: Path, model: PolicySection) -> Mapping[str, Contender]:
    """All of them by name. `model`: the policy that has learned nothing."""
    agent, static = CONTENDERS["ppo"], CONTENDERS["static"]
    chosen = {
        HOME: _trained(policies, direction.home),
        AWAY: _trained(policies, direction.away),
        SHIPS: agent.policy,
        MODEL: model,
    }
    first = WORKLOADS[direction.workload].batch
    fixed = {name: dataclasses.replace(static, batch=round(first * factor)) for name, factor in STATICS.items()}
    return {name: dataclasses.replace(agent, policy=policy) for name, policy in chosen.items()} | fixed


def _trained(policies: Path, family: str) -> PolicySection:
    """The policy of a family; its file need not be there."""
    file = str(policy_file(policies, family))
    return PolicySection(name="ppo", ppo=Ppo(space=SETTINGS.space, file=file, hidden=SETTINGS.learner.hidden))


def targets() -> Mapping[str, tuple[EvaluationTarget, ...]]:
    """Test losses, by workload."""
    return {
        name: tuple(EvaluationTarget(one.metric, value, higher_is_better=False) for value in one.thresholds)
        for name, one in WORKLOADS.items()
    }


def _cell(name: Name, chosen: Contender) -> Cell:
    workload = WORKLOADS[name.workload]
    return cell_of(name, Workplace(workload, _cluster(name), (workload.batch,) * WORKERS), chosen)


def _cluster(name: Name) -> Scenario:
    """The same machines for all; the wide model computes and sends WIDER times as much."""
    noise_scale = NOISE_SCALES[VGG if name.workload in (VGG_ADAM, VGG_WIDE) else name.workload]
    cluster = cluster_for(load_scenario(name.scenario), noise_scale, WORKLOADS[name.workload].window)
    if name.workload != VGG_WIDE:
        return cluster
    heavy = heavier(cluster, WIDER, WIDER)
    return heavy.model_copy(update={"model_bytes": heavy.model_bytes})  # what is named counts
