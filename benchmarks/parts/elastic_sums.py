"""What it costs in an elastic job to keep gradients until their sum is complete: with a copy of them, and without.

    python -m benchmarks.parts.elastic_sums --json FILE

Two workers train VGG11 for CIFAR-10 (37 MB) over our BytePS as an elastic job has it. A gradient may have to be sent
again there, so its sum must not take its place. `elsewhere`: the hook receives the sum in another buffer, as it does.
`in place`: it asks for the sum in the same buffer, and the data plane copies the gradient first. Both alternate in
blocks within the same processes, so that noise of the machine affects both. `ratio` is the median over pairs of
neighbouring blocks of the first's time divided by the second's, `cpu_ratio` that of the CPU seconds of all roles.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console

from benchmarks.parts.processes.comm_curve_worker import Operation, alternate, batches, fresh
from benchmarks.parts.processes.comm_worker import Step, make_ours
from benchmarks.parts.processes.roles import Roles
from benchmarks.suite.machine_speed import machine_name
from benchmarks.testbed.byteps_roles import OURS
from dynamix_ps.comm import open_comm
from dynamix_ps.config import variables

MODEL = "vgg11"
ELSEWHERE, IN_PLACE = "elsewhere", "in place"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--blocks", type=int, default=20, help="of each kind (default: %(default)s)")
    parser.add_argument("--block-s", type=float, default=2.0, help="seconds of a block (default: %(default)s)")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(run_worker(args.worker, args.blocks, args.block_s)), flush=True)
        return
    with tempfile.TemporaryDirectory(prefix="dynamix-elastic-") as name:
        options = ["--blocks", str(args.blocks), "--block-s", str(args.block_s), "--worker", f"{name}/rendezvous"]
        environment = OURS | {variables.ELASTIC: "1"}
        with Roles(Path(name), environment, ["-m", "benchmarks.parts.elastic_sums", *options]) as running:
            figures = summary(running.results()[0])
    Console().print_json(data=figures)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


def summary(blocks: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    """Medians over blocks, and of ratios over pairs of neighbouring ones."""
    pairs = list(zip(blocks[ELSEWHERE], blocks[IN_PLACE], strict=True))
    ratios, cpu_ratios = ([one[place] / other[place] for one, other in pairs] for place in (0, 1))
    return {
        "ratio": statistics.median(ratios),
        "ratio_spread": [min(ratios), max(ratios)],
        "cpu_ratio": statistics.median(cpu_ratios),
        "iteration_ms": {kind: statistics.median(ms for ms, _ in measured) for kind, measured in blocks.items()},
        "cpu_ms": {kind: 1e3 * statistics.median(cpu_s for _, cpu_s in measured) for kind, measured in blocks.items()},
        "blocks": len(pairs),
        "machine": machine_name(),
        "cores": os.cpu_count(),
    }


def run_worker(rendezvous: Path, blocks: int, block_s: float) -> dict[str, list[tuple[float, float]]]:
    """Iterations of the same training in both ways. Returns (ms, CPU seconds of all roles) per iteration, by block."""
    torch.set_num_threads(1)
    comm = open_comm("byteps")
    comm.init()
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=comm.rank, world_size=comm.size)
    data = batches(MODEL, comm.rank)
    systems: dict[str, Operation] = {}
    for kind in (ELSEWHERE, IN_PLACE):
        comm.sends_again = kind == ELSEWHERE
        step, _ = make_ours(f"{MODEL} {kind}", *fresh(MODEL), data, comm)
        systems[kind] = _again_and_again(step)
    measured = alternate(systems, blocks, block_s)
    dist.barrier()
    dist.destroy_process_group()
    comm.shutdown()
    return measured


def _again_and_again(step: Step) -> Operation:
    numbers = itertools.count()
    return lambda: step(next(numbers))


if __name__ == "__main__":
    main()
