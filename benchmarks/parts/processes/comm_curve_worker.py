"""A worker of `benchmarks.parts.comm_curve`: the same sums over our BytePS and over gloo, in alternating blocks.

    python -m benchmarks.parts.processes.comm_curve_worker --rendezvous FILE --sizes BYTES ... [--floor LIBRARY]
    python -m benchmarks.parts.processes.comm_curve_worker --rendezvous FILE --models NAME ...

Worker 0 prints one JSON document per size or model as soon as it is measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

from benchmarks.parts.processes.comm_worker import Batches, both_planes, make_gloo, make_ours, make_plain
from benchmarks.parts.processes.roles import LIMIT_S, cpu_s
from benchmarks.parts.references.memory_floor import MemoryFloor, segment_bytes
from benchmarks.workloads.models import make_model
from dynamix_ps.comm import Comm

WARM_UP = 0.25  # of a block
CHECK_STEPS = 3
BATCH = {"vgg11": 8, "mlp": 4}
MLP_WIDTH, MLP_LAYERS = 2048, 32  # 537 MB

Operation = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rendezvous", type=Path, required=True)
    parser.add_argument("--sizes", type=int, nargs="+", default=[], metavar="BYTES")
    parser.add_argument("--floor", type=Path, metavar="LIBRARY", help="measure the floor of shared memory as well")
    parser.add_argument("--models", nargs="+", default=[], choices=sorted(BATCH))
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--block-s", type=float, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with both_planes(args.rendezvous) as comm:

        def report(row: dict[str, Any]) -> None:
            if comm.rank == 0:
                print(json.dumps(row), flush=True)

        for size_bytes in args.sizes:
            report(measure_size(comm, size_bytes, args.floor, args.blocks, args.block_s))
        for model in args.models:
            report(measure_model(comm, model, args.blocks, args.block_s))


def measure_size(comm: Comm, size_bytes: int, floor: Path | None, blocks: int, block_s: float) -> dict[str, Any]:
    """Sums of one buffer of float32."""
    values, name = size_bytes // 4, f"sum.{size_bytes}"
    comm.declare(name)
    memory = comm.allocate(values, "float32")
    buffer, plain = torch.from_numpy(memory), torch.zeros(values)

    def ours() -> None:
        if not comm.wait(comm.push_pull(name, buffer), LIMIT_S):
            raise TimeoutError(f"a sum of {size_bytes} bytes did not end within {LIMIT_S:.0f} s")

    systems: dict[str, Operation] = {"ours": ours, "gloo": lambda: dist.all_reduce(plain)}
    buffers = {"ours": buffer, "gloo": plain}
    if floor:
        shared = shared_floor(floor, values, comm)
        systems["floor"], buffers["floor"] = shared.sum, torch.from_numpy(shared.buffer)
    for system, operation in systems.items():
        check_sum(operation, buffers[system], system)
    row = {"size_bytes": size_bytes, "blocks": alternate(systems, blocks, block_s)}
    comm.release(memory)
    return row


def shared_floor(library: Path, values: int, comm: Comm) -> MemoryFloor:
    """Rank 0 makes a segment without a name; the others open it in its process."""
    segment = os.memfd_create("memory-floor")
    if comm.rank == 0:
        os.ftruncate(segment, segment_bytes(values, comm.size))
    path = [f"/proc/{os.getpid()}/fd/{segment}"]
    dist.broadcast_object_list(path)
    floor = MemoryFloor(library, Path(path[0]), values, comm.size, comm.rank)
    dist.barrier()
    os.close(segment)
    return floor


def check_sum(operation: Operation, buffer: torch.Tensor, system: str) -> None:
    """Sum known values; zeros remain, so that further sums cannot overflow. Raises SystemExit for a wrong sum."""
    workers = dist.get_world_size()
    expected = workers * (workers + 1) / 2
    buffer.fill_(dist.get_rank() + 1.0)
    dist.barrier()  # the floor reads the buffers of all
    operation()
    low, high = float(buffer.min()), float(buffer.max())
    if (low, high) != (expected, expected):
        raise SystemExit(f"{system}: sums of {buffer.numel()} values are {low} to {high}, expected {expected}")
    dist.barrier()
    buffer.zero_()
    dist.barrier()


def measure_model(comm: Comm, model: str, blocks: int, block_s: float) -> dict[str, Any]:
    """Iterations of a training through the hook's exchange, over DDP, and with no exchange at all, same weights."""
    data = batches(model, comm.rank)
    ours, our_weights = make_ours(model, *fresh(model), data, comm)
    gloo, gloo_weights = make_gloo(*fresh(model), data)
    for step in (ours, gloo):
        for i in range(CHECK_STEPS):
            step(i)
    pairs = zip(our_weights, gloo_weights, strict=True)
    different = sum(int((a.view(torch.int32) != b.view(torch.int32)).sum()) for a, b in pairs)
    alone = make_plain(*fresh(model), data)
    numbers = itertools.count()
    systems = {
        "ours": lambda: ours(next(numbers)),
        "gloo": lambda: gloo(next(numbers)),
        "alone": lambda: alone(next(numbers)),
    }
    return {
        "model": model,
        "size_bytes": 4 * sum(weights.numel() for weights in our_weights),
        "batch": BATCH[model],
        "different_weights": int(largest(different)),
        "blocks": alternate(systems, blocks, block_s),
    }


def fresh(model: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    module = make_model("vgg11", (3, 32, 32), 10) if model == "vgg11" else wide_mlp()
    return module, torch.optim.SGD(module.parameters(), lr=0.001)


def wide_mlp() -> torch.nn.Module:
    """Much communication for little computation; initialised as in arXiv 1502.01852, so that all gradients count."""
    layers: list[torch.nn.Module] = []
    for _ in range(MLP_LAYERS):
        dense = torch.nn.Linear(MLP_WIDTH, MLP_WIDTH)
        torch.nn.init.kaiming_normal_(dense.weight, nonlinearity="relu")
        layers += [dense, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(MLP_WIDTH, 10))


def batches(model: str, rank: int) -> Batches:
    generator = torch.Generator().manual_seed(rank)
    shape = (3, 32, 32) if model == "vgg11" else (MLP_WIDTH,)
    return [
        (
            torch.randn(BATCH[model], *shape, generator=generator),
            torch.randint(0, 10, (BATCH[model],), generator=generator),
        )
        for _ in range(CHECK_STEPS)
    ]


def alternate(
    systems: Mapping[str, Operation], blocks: int, block_s: float, least: int = 1, end: Operation = lambda: None
) -> dict[str, list[tuple[float, float]]]:
    """Blocks of about `block_s`: (ms, CPU seconds of all roles) per operation; the order turns from block to block.

    A block has at least so many operations, and ends with `end`.
    """
    roles = psutil.Process(os.getppid()).children()  # of this run: the benchmark has started them
    counts, order = {}, list(systems)
    for system, operation in systems.items():
        once_s, _ = measure_block(operation, 1, roles, end)
        warm_s, _ = measure_block(operation, round(block_s * WARM_UP / once_s) or 1, roles, end)
        counts[system] = max(round(block_s / warm_s), least)
    measured: dict[str, list[tuple[float, float]]] = {system: [] for system in systems}
    for number in range(blocks):
        for system in order if number % 2 == 0 else order[::-1]:
            seconds, cpu = measure_block(systems[system], counts[system], roles, end)
            measured[system].append((seconds * 1e3, cpu))
    return measured


def measure_block(operation: Operation, count: int, roles: list[psutil.Process], end: Operation) -> tuple[float, float]:
    """(seconds of the slowest worker, CPU seconds of all roles) per operation. The seconds are equal on all workers."""
    before_s = sum(map(cpu_s, roles))
    dist.barrier()
    began_s = time.perf_counter()
    for _ in range(count):
        operation()
    end()
    passed_s = largest(time.perf_counter() - began_s)
    return passed_s / count, (sum(map(cpu_s, roles)) - before_s) / count


def largest(value: float) -> float:
    """The largest value of all workers."""
    values = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return float(values[0])


if __name__ == "__main__":
    main()
