"""One run of the comparison of ring and parameter server: on which cluster, over which plane, with which sizes.

    python -m benchmarks.studies.bed.ring_or_server_cell slow-link-mixed servers-1 adaptive 1 --until-s 18 --out FOLDER

It is a cell of the suite (benchmarks/suite/cell.py) that ends when it has trained for as long as the clock needs. Four
workers train on 256 samples in every iteration, whatever their sizes are, so iterations are equal work.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.studies.bed.clock_cell import workload_of
from benchmarks.suite.cell import run_cell, run_folder
from benchmarks.suite.contenders import CONTENDERS, Contender
from benchmarks.suite.results import CellName
from benchmarks.suite.scenario import LinkSettings, Scenario
from benchmarks.suite.workloads import Workload
from dynamix_ps.config.schema import OWN_HOST, PolicySection, ServerSection
from dynamix_ps.exit_codes import exit_code_of

WORKERS, SIZE = 4, 64  # samples of each in an iteration, at first
LINK_MBIT, SLOW_MBIT, SLOW_WORKER = 100.0, 40.0, 3

EQUAL_SPEEDS = (0.375, 0.375, 0.375, 0.375)  # cores, in all as many as in the scenarios that ship
MIXED_SPEEDS = (0.176, 0.265, 0.353, 0.706)  # of `four-workers`; the fastest is SLOW_WORKER
SPEEDS = {"equal": EQUAL_SPEEDS, "mixed": MIXED_SPEEDS}
LINKS = ("equal-links", "slow-link")
CLUSTERS = tuple(f"{links}-{speeds}" for links in LINKS for speeds in SPEEDS)

RING = "ring"
EXTRA_SERVERS: Mapping[str, int] = {f"servers-{extra}": extra for extra in range(4)}  # beside one per worker's host
PLANES = (RING, *EXTRA_SERVERS)

EQUAL, ADAPTIVE = "equal-sizes", "adaptive-sizes"
SIZES = (EQUAL, ADAPTIVE)


def cluster_of(name: CellName) -> Scenario:
    """The emulated cluster: every worker's host, and hosts of extra servers, which have links like the workers'."""
    links, _, speeds = name.scenario.rpartition("-")
    extra = EXTRA_SERVERS.get(name.workload, 0)
    beside = [ServerSection(host=f"worker-{rank}") for rank in range(WORKERS)]
    usual = LinkSettings(up_mbit=LINK_MBIT, down_mbit=LINK_MBIT)
    slow = LinkSettings(up_mbit=SLOW_MBIT, down_mbit=SLOW_MBIT)
    of_workers = {
        f"worker-{rank}": slow if links == "slow-link" and rank == SLOW_WORKER else usual for rank in range(WORKERS)
    }
    return Scenario(
        name=name.scenario,
        about=f"{name.scenario}, {name.workload}",
        cores=SPEEDS[speeds],
        servers=(*beside, *(ServerSection(host=OWN_HOST) for _ in range(extra))),
        links=of_workers | {f"server-{WORKERS + number}": usual for number in range(extra)},
    )


def training_of(name: CellName, until_s: float) -> Workload:
    """The one of the check of the clock, over the ring or parameter servers."""
    workload = workload_of(until_s)
    plane = "gloo" if name.workload == RING else "byteps"
    return workload.model_copy(update={"comm": plane, "batch": SIZE, "eval_samples": 2000})


def contender_of(name: CellName) -> Contender:
    """Equal sizes, or those of the policy that ships with its global batch held at the first one."""
    if name.contender == EQUAL:
        return dataclasses.replace(CONTENDERS["static"], batch=SIZE)
    held = {"policy": {"name": "ppo"}, "without": "batch"}
    policy = PolicySection(name="benchmarks.studies.ablated:AblatedPolicy", options=held)
    return dataclasses.replace(CONTENDERS["ppo"], policy=policy)


def command_of(cell: CellName, out: Path, until_s: float) -> tuple[str, ...]:
    """The process that runs the cell and writes its result below `out`."""
    words = (cell.scenario, cell.workload, cell.contender, str(cell.seed), "--until-s", str(until_s), "--out", str(out))
    return (sys.executable, "-m", "benchmarks.studies.bed.ring_or_server_cell", *words)


def main() -> int:
    return exit_code_of(_main)


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cluster", choices=CLUSTERS)
    parser.add_argument("plane", choices=PLANES)
    parser.add_argument("sizes", choices=SIZES)
    parser.add_argument("seed", type=int)
    parser.add_argument("--until-s", type=float, required=True, help="seconds of training that count")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="for the result")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    name = CellName(args.cluster, args.plane, args.sizes, args.seed)
    with run_folder() as base:
        return run_cell(name, cluster_of(name), training_of(name, args.until_s), contender_of(name), base, args.out)


if __name__ == "__main__":
    sys.exit(main())
