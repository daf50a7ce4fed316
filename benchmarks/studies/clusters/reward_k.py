"""How far the weights of the reward, and the iterations per decision, may be off (simulated).

    python -m benchmarks.studies.clusters.reward_k --json FILE

Everything is measured on trainings fitted to the workloads that ship (surrogate_worlds.py): five workloads on two
clusters each. None of them is trained on: policies are, as the one that ships, trained on clusters drawn at random.

- A weight of the reward counts only while a policy learns, so for each weight and factor policies are trained anew:
  small trainings with 8 workers. Factor 0 leaves the term out.
- The window of k iterations per decision is changed for the policy that ships, which is not trained again; and, beside
  it, for small trainings with the same k.
- For comparison: the policy that ships, the model of the cluster behind it (nothing learned), fixed sizes, and small
  trainings with the reward of DYNAMIX, and with its actions too.

The figure is the time to the target over that with factor 1 (of the small training with the same seed, or of the policy
that ships at k = 20), paired by seeds: the interquartile mean over workloads, clusters and seeds, and the range of
single trainings; of one training, or none, a bootstrap interval of 95 %. A run that never reaches the target counts
with the longest time of any run there. `may be off` are the factors, from 1 outwards, whose upper end is at most 1.05.
There is no safety net but in the policy that ships.

Every run is a row of reward-k.csv, written as soon as its cell ends; a later call runs what is missing. Delete the file
after a change of policies or of the simulator.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.studies.clusters.reward_k_page import (
    BASE,
    K_ANEW,
    K_SHIPS,
    PAPER_SPACE,
    SHIPS,
    WEIGHTS,
    report,
    variant_name,
)
from benchmarks.studies.clusters.surrogate_worlds import worlds
from benchmarks.studies.kept_rows import Row, key_of
from benchmarks.studies.study import run_kept_study
from benchmarks.studies.trainings import SEED, Training, shortened, train, untrained, without_safety_net
from dynamix_ps.config.schema import PolicySection
from dynamix_ps.policy.learned.rewards import GoodputReward, PaperReward
from dynamix_ps.sim.contest.contest import compete
from dynamix_ps.sim.scenario.load import Scenario
from dynamix_ps.sim.training.trainer import TrainSettings, paper_settings

K = 20
FACTORS = (0.25, 0.5, 2.0, 4.0)
SEEDS = 4
TRAININGS = 2  # with each weight and factor; one of the others
WINDOWS = 40_000
GOODPUT = GoodputReward()
PLAIN = ("static", "model")


def variants(windows: int) -> dict[str, TrainSettings]:
    """The settings to compare, by name."""
    usual = TrainSettings(n_workers=(8,), environments=32, total_windows=windows, window=K)
    found = {BASE: usual}
    for weight in WEIGHTS:
        for factor in (0.0, *FACTORS):
            changed = replace(GOODPUT, **{weight: factor * getattr(GOODPUT, weight)})
            found[variant_name(weight, factor)] = replace(usual, reward=changed)
    found |= {variant_name(K_ANEW, factor): replace(usual, window=int(K * factor)) for factor in FACTORS}
    found["paper's reward, our actions"] = replace(usual, reward=PaperReward())
    found[PAPER_SPACE] = paper_settings(n_workers=(8,), environments=32, total_windows=windows, window=K)
    return found


@dataclass(frozen=True, slots=True)
class StudyCell:
    """One policy on all worlds. `settings`: of its training; none: nothing is trained. `k`: in use."""

    variant: str
    k: int = K
    settings: TrainSettings | None = None
    quick: bool = False

    @property
    def title(self) -> str:
        return self.policy

    @property
    def policy(self) -> str:
        """The variant and, if it was trained, its number."""
        return self.variant if self.settings is None else f"{self.variant} #{self.settings.seed}"

    @property
    def seeds(self) -> int:
        return 2 if self.quick else SEEDS

    @property
    def scenarios(self) -> list[Scenario]:
        found = worlds()
        return [at_k(one, self.k) for one in ([shortened(found[0])] if self.quick else found)]

    @property
    def key(self) -> str:
        told = None if self.settings is None else self.settings.as_json()
        return key_of(self.scenarios, self.policy, self.seeds, told)


def cells_of(quick: bool) -> list[StudyCell]:
    """All cells; `quick`: few variants, trained once and for a moment."""
    trainings, windows = (1, 1_500) if quick else (TRAININGS, WINDOWS)
    shipped = {SHIPS: K} | {variant_name(K_SHIPS, factor): int(K * factor) for factor in FACTORS}
    cells = [StudyCell(name, quick=quick) for name in PLAIN]
    cells += [StudyCell(name, k, quick=quick) for name, k in shipped.items()]
    chosen = variants(windows)
    if quick:
        chosen = {name: chosen[name] for name in (BASE, variant_name("throughput", 0.5), PAPER_SPACE)}
    return cells + [
        StudyCell(name, settings.window, replace(settings, seed=seed), quick)
        for seed in range(trainings)
        for name, settings in chosen.items()
        if seed == 0 or name == BASE or name.startswith(WEIGHTS)
    ]


def at_k(scenario: Scenario, k: int) -> Scenario:
    """The scenario with a decision after every k iterations and the same limit of iterations."""
    return scenario.model_copy(update={"window": k, "max_windows": scenario.max_windows * scenario.window // k})


def run(cell: StudyCell) -> list[Row]:
    """Train if there is something to train, then run on all worlds: a row per world and seed."""
    with tempfile.TemporaryDirectory(prefix="dynamix-reward-k-") as name:
        policies = {cell.policy: _policy_of(cell, Path(name))}
        contest = compete(cell.scenarios, policies, seeds=cell.seeds, seed=SEED, processes=1)
        training = "" if cell.settings is None else str(cell.settings.seed)
        return [{"variant": cell.variant, "training": training, **row} for row in contest.rows()]


def _policy_of(cell: StudyCell, folder: Path) -> PolicySection:
    if cell.settings is not None:
        training = Training("policy", cell.settings)
        train(training, folder)
        return without_safety_net(training.file(folder))
    if cell.variant == "model":
        return untrained(folder / "untrained.npz")
    return PolicySection(name="static" if cell.variant == "static" else "ppo")


def main(arguments: Sequence[str] | None = None) -> None:
    run_kept_study("clusters.reward_k", __doc__, cells_of, run, report, arguments)


if __name__ == "__main__":
    main()
