"""What learning adds to the model behind the structured policy, on clusters drawn at random (simulated).

    python -m benchmarks.studies.learned --json FILE

Clusters are drawn as in training (dynamix_ps/sim/cluster/randomise.py), from a seed that no training uses. Each one
runs twice with the same random numbers: with the policy that ships, and with an untrained one, which follows the advice
of the model (dynamix_ps/policy/model/advice.py). `ratio` is the time to target of the first over the second. A run
that does not reach the target within `WINDOWS` counts with its whole time.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.studies.agent_runs import SHIPPED, Networks, networks_in, run_agent, untrained_networks
from dynamix_ps.sim.cluster.randomise import draw
from dynamix_ps.terminal import make_console

SEED = 7_000_000  # trainings use small seeds
WINDOWS = 6000
WORKERS = (3, 8, 16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--clusters", type=int, default=256, help="clusters of each size")
    args = parser.parse_args()
    learned, model = networks_in(SHIPPED), untrained_networks()
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


def times_s(networks: Networks, clusters: int, n_workers: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Simulated seconds to the target of every cluster, and whether it reached the target."""
    parameters = draw(np.random.default_rng(SEED), clusters, n_workers)
    outcome = run_agent(parameters, networks, np.random.default_rng(SEED), WINDOWS)
    return outcome.time_s, outcome.reached


if __name__ == "__main__":
    main()
