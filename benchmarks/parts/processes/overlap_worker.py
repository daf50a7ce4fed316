"""A worker of `benchmarks.parts.overlap`: iterations of a model, and the parts that an iteration is made of.

    python -m benchmarks.parts.processes.overlap_worker --rendezvous FILE --cases vgg11:8 cnn:64 ...

Worker 0 prints one JSON document per case as soon as it is measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.parts.processes.comm_curve_worker import alternate
from benchmarks.parts.processes.comm_worker import Batches, Step, both_planes, make_gloo, make_ours, make_plain
from benchmarks.parts.processes.roles import LIMIT_S
from benchmarks.workloads.models import count_parameters, make_model
from dynamix_ps.comm import Comm
from dynamix_ps.config import variables

SHAPES = {"vgg11": (3, 32, 32), "cnn": (1, 28, 28)}
BATCHES = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rendezvous", type=Path, required=True)
    parser.add_argument("--cases", nargs="+", required=True, metavar="MODEL:BATCH")
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--block-s", type=float, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with both_planes(args.rendezvous) as comm:
        for case in args.cases:
            model, _, batch = case.partition(":")
            blocks = alternate(systems_of(model, int(batch), comm), args.blocks, args.block_s)
            if comm.rank == 0:
                print(json.dumps({"model": model, "batch": int(batch), "blocks": blocks}), flush=True)


def systems_of(model: str, batch: int, comm: Comm) -> dict[str, Callable[[], object]]:
    """What is measured: one iteration, or one part of it, per call."""
    name, data = f"{model}.{batch}", batches(model, batch, comm.rank)

    def fresh() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        module = make_model(model, SHAPES[model], 10)
        return module, torch.optim.SGD(module.parameters(), lr=0.001)

    ours, _ = make_ours(name, *fresh(), data, comm)
    by_link, comm.least_bucket_bytes = comm.least_bucket_bytes, sys.maxsize
    large, _ = make_ours(f"{name}.large", *fresh(), data, comm)  # buckets as on a fast link
    comm.least_bucket_bytes = by_link
    coded = {}
    for wire in ("bf16", "int8"):
        os.environ[variables.WIRE] = wire
        coded[wire], _ = make_ours(f"{name}.{wire}", *fresh(), data, comm)
    del os.environ[variables.WIRE]
    gloo, _ = make_gloo(*fresh(), data)
    return {
        "ours": numbered(ours),
        "large": numbered(large),
        **{wire: numbered(step) for wire, step in coded.items()},
        "gloo": numbered(gloo),
        "alone": numbered(make_plain(*fresh(), data)),
        "sum": one_sum(count_parameters(fresh()[0]), comm, f"sum.{name}"),
    }


def batches(model: str, batch: int, rank: int) -> Batches:
    generator = torch.Generator().manual_seed(rank)
    return [
        (
            torch.randn(batch, *SHAPES[model], generator=generator),
            torch.randint(0, 10, (batch,), generator=generator),
        )
        for _ in range(BATCHES)
    ]


def numbered(step: Step) -> Callable[[], object]:
    numbers = itertools.count()
    return lambda: step(next(numbers))


def one_sum(values: int, comm: Comm, name: str) -> Callable[[], object]:
    """The gradient of the model at once, while nothing is computed."""
    comm.declare(name)
    buffer: Any = torch.from_numpy(comm.allocate(values, "float32"))

    def sum_it() -> None:
        if not comm.wait(comm.push_pull(name, buffer), LIMIT_S):
            raise TimeoutError(f"a sum of {values} values did not end within {LIMIT_S:.0f} s")

    return sum_it


if __name__ == "__main__":
    main()
