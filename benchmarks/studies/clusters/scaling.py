"""8 to 1,024 workers whose links and speeds change all the time: the agent that ships, and two learners (simulated).

    python -m benchmarks.studies.clusters.scaling --json FILE

DYNAMIX (arXiv 2510.08522) ends at 32 workers, and its text says that its learner has neither clipping nor an advantage,
as rewards hardly swing. Does that hold with more workers and networks that change (unsteady.py)? A cluster grows with
its work: servers' bandwidth, noise scale and data in proportion to the workers (Scenario.with_workers). Contenders:

    static    one size for all workers, the best of STATIC, known only afterwards
    model     the model of the cluster behind ppo, nothing learned
    ppo       the policy that ships, trained with 2 to 16 workers on clusters drawn at random
    clip      PPO with clipping and critic, trained here: on these clusters with as many workers
    simple    the learner of that text (policy/ppo/settings.py says what it leaves out), trained in the same way

`clip` and `simple` learn the decisions of ppo with the same seeds and the same number of updates, TRAININGS times for
each number of workers. Nobody has a safety net. Times are over those of the model, paired by seed. A run that
never reaches the target counts with the longest time of any run on that cluster. Beside the time:

    moved      relative change of a worker's size from window to window, mean
    swing      mean step of the return from one window to the next. The return is log2 of the progress per second
               without luck, so a swing of 0.1 is 7 %
    learning   mean reward of an update: its last value (mean of LAST updates), how far that lies below the best one,
               and its mean step from update to update; and the largest KL of one update (nats)

Every run is a row of scaling.csv, written as soon as its cell ends; the first one of a learned policy has its learning,
too. A later call runs what is missing. Delete the file after a change of policies or of the simulator. What decisions
and the trailer cost with as many workers: benchmarks/results/reporters.md and trailer.md.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from benchmarks.studies.clusters.agent_runs import SHIPPED, Networks, networks_in, run_agent, untrained_networks
from benchmarks.studies.clusters.scaling_page import LEARNING, report
from benchmarks.studies.clusters.stigmergy import Watch
from benchmarks.studies.clusters.unsteady import unsteady
from benchmarks.studies.kept_rows import Row, key_of
from benchmarks.studies.study import run_kept_study
from benchmarks.studies.trainings import SEED, LearningRows, Training, shortened, train
from dynamix_ps.config.schema import PolicySection
from dynamix_ps.policy.learned.rewards import SMALLEST_PROGRESS
from dynamix_ps.sim.cluster import learning
from dynamix_ps.sim.cluster.parameters import parameters_of
from dynamix_ps.sim.cluster.simulator import Simulator
from dynamix_ps.sim.contest.comparison import Array
from dynamix_ps.sim.contest.contest import best_size
from dynamix_ps.sim.contest.evaluate import Cell, SimulatedOutcome, evaluate
from dynamix_ps.sim.scenario.load import Scenario
from dynamix_ps.sim.training.trainer import TrainSettings

Learner = Literal["clip", "simple"]
SIZES = (8, 32, 64, 128, 256, 512, 1024)
SEEDS = 2
TRAININGS = 4
ENVIRONMENTS, ROLLOUT, UPDATES = 4, 16, 20  # clusters at once, windows of each per update, updates of a training
STATIC = (32, 64, 128, 256)  # samples of every worker
LAST = 10  # updates
CONTENDERS = ("static", "model", "ppo")


@dataclass(frozen=True, slots=True)
class StudyCell:
    """One contender with so many workers. `training`: its number, where the contender is a learner."""

    workers: int
    contender: str
    training: int | None = None
    quick: bool = False

    @property
    def title(self) -> str:
        return f"{self.workers} workers, {self.policy}"

    @property
    def policy(self) -> str:
        """The contender; of a learner, which training."""
        return self.contender if self.training is None else f"{self.contender} {self.training}"

    @property
    def seeds(self) -> int:
        return 2 if self.quick else SEEDS

    @property
    def key(self) -> str:
        settings = self.settings
        told = None if settings is None else settings.as_json()
        return key_of(self.scenarios, self.policy, self.seeds, STATIC, told)

    @property
    def scenarios(self) -> list[Scenario]:
        """The clusters, each with so many workers."""
        found = [one.with_workers(self.workers) for one in unsteady()]
        return [shortened(found[0])] if self.quick else found

    @property
    def settings(self) -> TrainSettings | None:
        """Those of its training; none if it does not learn."""
        if self.training is None:
            return None
        updates = 2 if self.quick else UPDATES
        plain = TrainSettings(
            n_workers=(self.workers,),
            environments=ENVIRONMENTS,
            rollout_windows=ROLLOUT,
            total_windows=updates * ENVIRONMENTS * ROLLOUT,
            seed=self.training,
        )
        learner: Learner = "clip" if self.contender == "clip" else "simple"
        return replace(plain, learner=replace(plain.learner, learner=learner))


def cells_of(quick: bool) -> list[StudyCell]:
    """All cells, the larger clusters last; `quick`: two small sizes and one training."""
    sizes, trainings = ((8, 16), 1) if quick else (SIZES, TRAININGS)
    return [
        StudyCell(workers, name, number, quick)
        for workers in sizes
        for name, numbers in [
            *((one, (None,)) for one in CONTENDERS),
            *((one, range(trainings)) for one in get_args(Learner)),
        ]
        for number in numbers
    ]


def run(cell: StudyCell) -> list[Row]:
    """Train if it learns, then run on both clusters: a row per cluster and seed."""
    networks, learned = _trained(cell) if cell.settings else (None, {})
    if cell.contender in ("model", "ppo"):
        networks = untrained_networks() if cell.contender == "model" else networks_in(SHIPPED)
    rows = [row for one in cell.scenarios for row in _rows_on(one, cell, networks)]
    nothing = dict.fromkeys((*LEARNING, "rewards"), "")
    return [row | (nothing if place else nothing | learned) for place, row in enumerate(rows)]


def _trained(cell: StudyCell) -> tuple[Networks, dict[str, str]]:
    """The networks of a learner, and the columns about its learning."""
    assert cell.settings is not None
    training = Training(cell.contender, cell.settings, unsteady())
    with tempfile.TemporaryDirectory(prefix="dynamix-scaling-") as name:
        updates = train(training, Path(name))
        return networks_in(training.file(Path(name))), learning_columns(updates)


def _rows_on(scenario: Scenario, cell: StudyCell, networks: Networks | None) -> list[Row]:
    """Of one cluster; without networks: fixed sizes."""
    if networks is None:
        tried = {size: _watched(scenario, cell, size) for size in STATIC}
        size = best_size({size: outcome for size, (outcome, _, _) in tried.items()})
        (outcome, watch, returns), told = tried[size], str(size)
    else:
        (outcome, watch, returns), told = _watched(scenario, cell, networks), ""
    return [
        {
            "workers": cell.workers,
            "scenario": scenario.name,
            "contender": cell.contender,
            "policy": cell.policy,
            "seed": seed,
            **{field.name: getattr(outcome, field.name)[seed].item() for field in dataclasses.fields(SimulatedOutcome)},
            **seen,
            "swing": float(returns.swing[seed]),
            "size": told,
        }
        for seed, seen in enumerate(watch.rows())
    ]


class ReturnWatch:
    """The return of every window until the target; arrays of (seeds,)."""

    def __init__(self, seeds: int) -> None:
        self._steps, self._count = np.zeros(seeds), np.zeros(seeds)
        self._before: Array | None = None

    def __call__(self, simulator: Simulator, running: NDArray[np.bool_]) -> None:
        assert simulator.times is not None
        batch = np.maximum(simulator.sizes.sum(axis=-1), 1).astype(np.float32)
        progress = learning.step_progress(simulator.parameters, simulator.noise_scale, batch)
        now = np.log2(np.maximum(progress, SMALLEST_PROGRESS) / simulator.times.iteration_s)
        if self._before is not None:
            self._steps += running * np.abs(now - self._before)
            self._count += running
        self._before = now

    @property
    def swing(self) -> Array:
        """Mean step from one window to the next."""
        return np.asarray(self._steps / np.maximum(self._count, 1))


def _watched(
    scenario: Scenario, cell: StudyCell, decides: Networks | int
) -> tuple[SimulatedOutcome, Watch, ReturnWatch]:
    """`decides`: networks, or the fixed size of every worker. Bursts and drift are the same for all."""
    seeds = cell.seeds
    watch, returns = Watch(seeds), ReturnWatch(seeds)

    def both(simulator: Simulator, running: NDArray[np.bool_]) -> None:
        watch(simulator, running)
        returns(simulator, running)

    if isinstance(decides, int):
        policy = PolicySection(name="static", sizes=(decides,) * cell.workers)
        return evaluate(Cell(scenario, policy, seeds, SEED), both), watch, returns
    (rng,) = np.random.default_rng(SEED).spawn(1)  # that of the simulator in `evaluate`
    parameters = parameters_of((scenario,) * seeds)
    return run_agent(parameters, decides, rng, scenario.max_windows, both), watch, returns


def learning_columns(updates: LearningRows) -> dict[str, str]:
    """What a training was like: LEARNING, and the reward of every update."""
    rewards = np.array([row["reward"] for row in updates])
    best, end = best_and_end(rewards)
    found = {
        "reward": end,
        "lost": best - end,
        "reward_swing": float(np.abs(np.diff(rewards)).mean()),
        "worst_kl": max(largest_kl(row) for row in updates),
    }
    return {name: f"{found[name]:.4g}" for name in LEARNING} | {"rewards": " ".join(f"{one:.4g}" for one in rewards)}


def best_and_end(rewards: Array) -> tuple[float, float]:
    """Largest and last mean of LAST updates."""
    span = min(LAST, len(rewards))
    means = np.convolve(rewards, np.ones(span) / span, mode="valid")
    return float(means.max()), float(means[-1])


def largest_kl(row: Mapping[str, float]) -> float:
    """The largest KL of any network in one update; infinite where the update was refused as not finite."""
    return max((value for name, value in row.items() if name.endswith("/approx_kl")), default=float("inf"))


def main(arguments: Sequence[str] | None = None) -> None:
    run_kept_study("clusters.scaling", __doc__, cells_of, run, report, arguments)


if __name__ == "__main__":
    main()
