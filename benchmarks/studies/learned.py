"""What learning adds to the model behind the structured policy, on clusters drawn at random (simulated).

    python -m benchmarks.studies.learned --json FILE

Clusters are drawn as in training (dynamix_ps/sim/cluster/randomise.py), from a seed that no training uses. Each one
runs twice with the same random numbers: with the policy that ships, and with an untrained one, which follows the advice
of the model (dynamix_ps/policy/learned/advice.py). `ratio` is the time to target of the first over the second. A run
that does not reach the target within `WINDOWS` counts with its whole time.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.config.schema import Ppo
from dynamix_ps.policy.cluster_model.model import ClusterModel
from dynamix_ps.policy.learned.policy import PRETRAINED
from dynamix_ps.policy.learned.rewards import GoodputReward
from dynamix_ps.policy.learned.spaces import fresh_networks, make_agent, policy_spec
from dynamix_ps.policy.ppo.actor_critic import ActorCritic
from dynamix_ps.policy.ppo.policy_file import load_policy
from dynamix_ps.policy.ppo.settings import Settings
from dynamix_ps.sim.cluster.randomise import draw
from dynamix_ps.sim.cluster.simulator import Simulator
from dynamix_ps.terminal import make_console

SEED = 7_000_000  # trainings use small seeds
WINDOWS = 6000
WORKERS = (3, 8, 16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--clusters", type=int, default=256, help="clusters of each size")
    args = parser.parse_args()
    spec = policy_spec("structured", Ppo().hidden)
    rng = np.random.default_rng(0)
    stored = load_policy(PRETRAINED / "structured.npz", spec)
    learned = {name: ActorCritic(weights, Settings(), rng) for name, weights in stored.networks.items()}
    model = fresh_networks(spec, Settings(), rng)
    figures = {}
    for n_workers in WORKERS:
        (mine, reached), (its, its_reached) = (times_s(one, args.clusters, n_workers) for one in (learned, model))
        ratio = mine / its
        low, middle, high = np.percentile(ratio, [5, 50, 95])
        figures[n_workers] = {
            "ratio": float(np.exp(np.log(ratio).mean())),
            "median": float(middle),
            "p05": float(low),
            "p95": float(high),
            "missed": int((~reached).sum()),
            "missed_by_model": int((~its_reached).sum()),
        }
        make_console().print(n_workers, "workers:", figures[n_workers])
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


def times_s(
    networks: dict[str, ActorCritic], clusters: int, n_workers: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Simulated seconds to the target of every cluster, and whether it reached the target."""
    simulator = Simulator(draw(np.random.default_rng(SEED), clusters, n_workers), np.random.default_rng(SEED))
    agent = make_agent("structured", networks, GoodputReward(), ClusterModel(clusters, n_workers))
    time_s, running = np.zeros(clusters), np.ones(clusters, dtype=bool)
    sizes, choices = simulator.sizes, agent.choices(explore=False)
    for _ in range(WINDOWS):
        state = agent.states.observe(simulator.step(sizes))
        time_s[running] = simulator.time_s[running]
        running &= ~simulator.done
        if not running.any():
            break
        sizes = agent.sizes(state, choices)
    return time_s, ~running


if __name__ == "__main__":
    main()
