"""How fast the arbitrator's policies reach a scenario's target accuracy on simulated clusters.

The seeds of a cell (one policy on one scenario) are the environments of one Simulator. Each seed has its own policy
object, which sees the same views as in a real run. Its answer passes the same guard and takes effect in the next
window. A seed makes no more decisions once it has reached the target. The oracle (oracle.py) sees the simulator itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.arbitrator.planner import guard
from dynamix_ps.config.schema import BatchBounds, Cluster, Config, PolicySection, WorkerSection
from dynamix_ps.policy.base import ask
from dynamix_ps.policy.registry import make_policy
from dynamix_ps.sim.cluster.parameters import parameters_of
from dynamix_ps.sim.cluster.simulator import Simulator
from dynamix_ps.sim.contest.oracle import oracle_sizes
from dynamix_ps.sim.scenario.load import Scenario

SEEDS = 20


@dataclass(frozen=True, slots=True)
class Cell:
    """One policy on one scenario. `seed` fixes every random number."""

    scenario: Scenario
    policy: PolicySection | None  # none: the oracle
    seeds: int = SEEDS
    seed: int = 0


@dataclass(frozen=True, slots=True)
class SimulatedOutcome:
    """Result of a cell; every array has one entry per seed. Times are simulated."""

    time_s: NDArray[np.float64]  # to the target; to the end if the target is not reached
    reached: NDArray[np.bool_]
    windows: NDArray[np.int64]
    accuracy: NDArray[np.float64]  # on the test set, at that time
    samples_per_s: NDArray[np.float64]
    fallbacks: NDArray[np.int64]  # windows in which the safety net decided


Watch = Callable[[Simulator, NDArray[np.bool_]], None]


def evaluate(cell: Cell, watch: Watch | None = None) -> SimulatedOutcome:
    """Run a cell until every seed has reached the target or its end: `max_windows`, or the budget of its workload.

    Args:
        watch: gets the simulator after every window, and which seeds have been running in it.

    Raises:
        PolicyError: the policy's file is unusable.
    """
    scenario, seeds = cell.scenario, cell.seeds
    simulator_rng, *policy_rngs = np.random.default_rng(cell.seed).spawn(1 + seeds)
    simulator = Simulator(parameters_of((scenario,) * seeds), simulator_rng)
    config = config_of(scenario, cell.policy or PolicySection(name="static"))
    policies = [make_policy(config, len(config.cluster.workers), rng) for rng in policy_rngs]
    sizes = np.tile(np.array(config.initial_sizes(), dtype=np.int64), (seeds, 1))
    time_s, accuracy = np.zeros(seeds), np.zeros(seeds)
    reached = np.zeros(seeds, dtype=bool)
    samples, windows, fallbacks = (np.zeros(seeds, dtype=np.int64) for _ in range(3))
    running = np.ones(seeds, dtype=bool)
    for _ in range(scenario.max_windows):
        simulator.step(sizes)
        if watch:
            watch(simulator, running)
        time_s[running], accuracy[running] = simulator.time_s[running], simulator.test_accuracy[running]
        samples[running], windows[running] = simulator.samples[running], simulator.windows[running]
        reached |= running & simulator.done
        running &= ~simulator.done
        if not running.any():
            break
        if cell.policy is None:
            sizes = oracle_sizes(simulator)
            continue
        if cell.policy.name == "static":  # its answer never changes
            continue
        views = simulator.views()
        for seed in np.flatnonzero(running):
            view = views[seed]
            decision = ask(policies[seed], view)
            sizes[seed] = guard(
                decision.batch_sizes, view.plan.batch_sizes, view.bounds, view.largest_total
            ).batch_sizes
            fallbacks[seed] += decision.fallback
    return SimulatedOutcome(time_s, reached, windows, accuracy, samples / time_s, fallbacks)


def config_of(scenario: Scenario, policy: PolicySection) -> Config:
    """The cluster file of a real run of this scenario. Sizes of a static policy hold from the start."""
    initial = policy.sizes or scenario.initial_sizes
    return Config(
        cluster=Cluster(workers=tuple(WorkerSection(batch=size) for size in initial)),
        batch=BatchBounds(min=scenario.batch.min, max=scenario.batch.max),
        window=scenario.window,
        lr_rule=scenario.lr_rule,
        policy=policy,
    )
