"""Runs of the structured policy on many simulated clusters at once, without safety net and without views of windows.

The decisions are those of `evaluate` in dynamix_ps/sim/contest, which asks one policy object per cluster as a live run
does. With hundreds of workers this way is several times as fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dynamix_ps.config.schema import Ppo
from dynamix_ps.policy.learned.policy import PRETRAINED
from dynamix_ps.policy.learned.rewards import GoodputReward
from dynamix_ps.policy.learned.spaces import fresh_networks, make_agent, policy_spec
from dynamix_ps.policy.model.cluster import ClusterModel
from dynamix_ps.policy.ppo.actor_critic import ActorCritic
from dynamix_ps.policy.ppo.policy_file import load_policy
from dynamix_ps.policy.ppo.settings import PpoSettings
from dynamix_ps.sim.cluster.parameters import Parameters
from dynamix_ps.sim.cluster.simulator import Simulator
from dynamix_ps.sim.contest.evaluate import SimulatedOutcome, Watch

Networks = Mapping[str, ActorCritic]

SHIPPED = PRETRAINED / "structured.npz"
_SPEC = policy_spec("structured", Ppo().hidden)


def networks_in(file: Path) -> Networks:
    """Those of a policy file. Raises PolicyError."""
    rng = np.random.default_rng(0)
    stored = load_policy(file, _SPEC)
    return {name: ActorCritic(weights, PpoSettings(), rng) for name, weights in stored.networks.items()}


def untrained_networks() -> Networks:
    """Networks that have learned nothing: they follow the advice of the model of the cluster."""
    return fresh_networks(_SPEC, PpoSettings(), np.random.default_rng(0))


def run_agent(
    parameters: Parameters, networks: Networks, rng: np.random.Generator, windows: int, watch: Watch | None = None
) -> SimulatedOutcome:
    """Run every cluster until it has reached its target, or for so many windows.

    Args:
        rng: of the simulator; the policy takes its likeliest action.
        watch: as in `evaluate`.
    """
    environments, n_workers = parameters.initial.shape
    simulator = Simulator(parameters, rng)
    agent = make_agent("structured", dict(networks), GoodputReward(), ClusterModel(environments, n_workers))
    time_s, accuracy, samples = (np.zeros(environments) for _ in range(3))
    closed, running = np.zeros(environments, dtype=np.int64), np.ones(environments, dtype=bool)
    sizes, choices = simulator.sizes, agent.choices(explore=False)
    for _ in range(windows):
        state = agent.states.observe(simulator.step(sizes))
        if watch:
            watch(simulator, running)
        time_s[running], accuracy[running] = simulator.time_s[running], simulator.test_accuracy[running]
        samples[running], closed[running] = simulator.samples[running], simulator.windows[running]
        running &= ~simulator.done
        if not running.any():
            break
        sizes = agent.sizes(state, choices)
    nobody = np.zeros(environments, dtype=np.int64)
    return SimulatedOutcome(time_s, simulator.done.copy(), closed, accuracy, samples / time_s, nobody)
