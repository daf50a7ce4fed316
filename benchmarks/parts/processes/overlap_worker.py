"""A worker of `benchmarks.parts.overlap`: iterations of a model, and the parts that an iteration is made of.

    python -m benchmarks.parts.processes.overlap_worker --rendezvous FILE --cases vgg11:8 cnn:64 ...

Worker 0 prints one JSON document per case as soon as it is measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.parts.processes.comm_curve_worker import alternate, largest
from benchmarks.parts.processes.comm_worker import (
    Batches,
    LateSums,
    Step,
    both_planes,
    make_gloo,
    make_ours,
    make_plain,
)
from benchmarks.parts.processes.roles import LIMIT_S
from benchmarks.parts.processes.waiting_layers import WaitingLayers
from benchmarks.workloads.models import count_parameters, make_model
from dynamix_ps.comm import Comm
from dynamix_ps.config import variables

SHAPES = {"vgg11": (3, 32, 32), "cnn": (1, 28, 28)}
BATCHES = 3
ITERATIONS = 8  # of a block, at least: in the last one nothing follows that could hide sums
SUMS = 5  # that show how long one takes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rendezvous", type=Path, required=True)
    parser.add_argument("--cases", nargs="+", required=True, metavar="CASE")
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--block-s", type=float, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with both_planes(args.rendezvous) as comm:
        for case in args.cases:
            model, _, size = case.partition(":")
            if (waiting := model.removeprefix("waiting-")) == model:
                systems = systems_of(model, int(size), comm)
            else:
                systems = waiting_systems(waiting, float(size), comm)
            blocks = alternate(systems, args.blocks, args.block_s, ITERATIONS, complete_sums)
            if comm.rank == 0:
                print(json.dumps({"case": case, "blocks": blocks}), flush=True)


def complete_sums() -> None:
    """Wait for the sums of the last iteration, too."""
    for sums in LateSums.every:
        sums.complete()


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
    following, _ = make_ours(f"{name}.next", *fresh(), data, comm, next_forward=True)
    gloo, _ = make_gloo(*fresh(), data)
    return {
        "ours": numbered(ours),
        "next": numbered(following),
        "large": numbered(large),
        **{wire: numbered(step) for wire, step in coded.items()},
        "gloo": numbered(gloo),
        "alone": numbered(make_plain(*fresh(), data)),
        "sum": one_sum(count_parameters(fresh()[0]), comm, f"sum.{name}"),
    }


def waiting_systems(model: str, ratio: float, comm: Comm) -> dict[str, Callable[[], object]]:
    """The same for layers that wait, where the sum takes `ratio` times as long as computing."""
    name = f"waiting.{model}.{ratio:g}"
    summed = one_sum(count_parameters(WaitingLayers(model, 0.0)), comm, f"sum.{name}")
    taken_s = []
    for _ in range(SUMS):
        began_s = time.perf_counter()
        summed()
        taken_s.append(largest(time.perf_counter() - began_s))
    computing_s = statistics.median(taken_s) / ratio
    data = [(torch.randn(1, 10), torch.zeros(1, dtype=torch.int64))]

    def fresh() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        module = WaitingLayers(model, computing_s)
        return module, torch.optim.SGD(module.parameters(), lr=0.001)

    return {
        "ours": numbered(make_ours(name, *fresh(), data, comm)[0]),
        "next": numbered(make_ours(f"{name}.next", *fresh(), data, comm, next_forward=True)[0]),
        "gloo": numbered(make_gloo(*fresh(), data)[0]),
        "alone": numbered(make_plain(*fresh(), data)),
        "sum": summed,
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
