"""A worker of `benchmarks.parts.comm`: trains the same models on the same batches over one of the data planes.

    python -m benchmarks.parts.processes.comm_worker {pair,stock,idle} ...

The last line of its output is a JSON document.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.nn.functional import cross_entropy

from benchmarks.workloads import models

if TYPE_CHECKING:
    from dynamix_ps.comm import Comm
    from worker_hooks.exchange.gradient_exchange import Bucket
    from worker_hooks.torch.gradients import TorchExchange

BATCH = 64
BATCHES = 8
BUCKET_BYTES = 4_000_000
BLOCK = {"mlp": 100, "cnn": 30}  # iterations that are timed together
STOCK_ITERATIONS = {"mlp": 20, "cnn": 5}
WARM_UP = 20
STOCK_WARM_UP = 2
CHECK_STEPS = 200

Step = Callable[[int], None]  # runs one iteration, given its number
Batches = Sequence[tuple[torch.Tensor, torch.Tensor]]  # of inputs and targets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=["pair", "stock", "idle"])
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--check", action="store_true", help="also compare weights")
    parser.add_argument("--rendezvous", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.mode == "pair":
        result = run_pair(args.blocks, args.check, args.rendezvous)
    elif args.mode == "stock":
        result = run_stock()
    else:
        run_idle()
        result = {}
    print(json.dumps(result), flush=True)


def batches(rank: int) -> Batches:
    """The batches of a worker; the same in every run."""
    generator = torch.Generator().manual_seed(rank)
    return [
        (torch.randn(BATCH, 1, 28, 28, generator=generator), torch.randint(0, 10, (BATCH,), generator=generator))
        for _ in range(BATCHES)
    ]


def fresh(model: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    module = models.make_model(model, (1, 28, 28), 10)
    return module, torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)


@contextmanager
def both_planes(rendezvous: Path) -> Iterator[Comm]:
    """Our BytePS, and torch.distributed over gloo with the same ranks, until all workers are at the end."""
    import torch.distributed as dist

    from dynamix_ps.comm import open_comm

    comm = open_comm("byteps")
    comm.init()
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=comm.rank, world_size=comm.size)
    yield comm
    dist.barrier()
    dist.destroy_process_group()
    comm.shutdown()


def run_pair(blocks: int, check: bool, rendezvous: Path) -> dict[str, Any]:
    """Our BytePS and gloo in the same processes, in alternating blocks."""
    result: dict[str, Any] = {"blocks": {}, "max_abs_diff": {}}
    with both_planes(rendezvous) as comm:
        for model, iterations in BLOCK.items():
            data = batches(comm.rank)
            ours, our_weights = make_ours(model, *fresh(model), data, comm)
            gloo, gloo_weights = make_gloo(*fresh(model), data)
            if check:
                for step in (ours, gloo):
                    for i in range(CHECK_STEPS):
                        step(i)
                pairs = zip(our_weights, gloo_weights, strict=True)
                result["max_abs_diff"][model] = max(float((a - b).detach().abs().max()) for a, b in pairs)
            times: dict[str, list[float]] = {"ours": [], "gloo": []}
            systems = [("ours", ours), ("gloo", gloo)]
            for _, step in systems:
                timed(step, WARM_UP)
            for block in range(blocks):
                for name, step in systems if block % 2 == 0 else systems[::-1]:
                    times[name].append(timed(step, iterations))
            result["blocks"][model] = times
    return result


def timed(step: Step, iterations: int) -> float:
    """Mean milliseconds per iteration."""
    began_s = time.perf_counter()
    for i in range(iterations):
        step(i)
    return (time.perf_counter() - began_s) / iterations * 1e3


def make_ours(
    name: str,
    module: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Batches,
    comm: Any,
    next_forward: bool = False,
) -> tuple[Step, list[torch.Tensor]]:
    """The gradient exchange of the hook: sends flat buckets, with the tail, while backward runs.

    `next_forward`: sums are under way until the next forward pass needs their weights.
    """
    from worker_hooks.exchange.trailer import Contribution
    from worker_hooks.torch.gradients import TorchExchange
    from worker_hooks.torch.late_gradients import LateGradients
    from worker_hooks.torch.late_steps import LateSteps
    from worker_hooks.torch.step_hooks import StepHooks

    late = LateGradients(lambda what, why: print(f"{what}: {why}", file=sys.stderr)) if next_forward else None
    parameters = dict(module.named_parameters())
    exchange = TorchExchange(parameters, [], comm, BUCKET_BYTES, f"bench.{name}", late=late)
    if late is not None:
        sums: Any = LateSums(exchange)
        late.sums = sums
        StepHooks(optimizer, lambda: 1.0, lambda: None, LateSteps(optimizer, sums, late)).install()

    def step(i: int) -> None:
        inputs, targets = data[i % len(data)]
        optimizer.zero_grad()
        if late is not None:
            late.batch_begun()
        loss = cross_entropy(module(inputs), targets)
        exchange.begin(1 / comm.size, measure_norm=False)
        loss.backward()  # type: ignore[no-untyped-call]
        mean_loss = float(loss.detach()) / comm.size
        exchange.send_rest(
            lambda grad_sq: [
                Contribution(len(inputs), mean_loss, math.nan, grad_sq, 0, 0.0, doing=0, weights=(0.0, 0.0))
            ]
        )
        exchange.receive(lambda waited_s: None, exchange.may_be_late())
        exchange.deliver()
        optimizer.step()

    return step, list(module.parameters())


class LateSums:
    """What steps and readers need of the sums of a training."""

    leads = True
    every: ClassVar[list[LateSums]] = []

    def __init__(self, exchange: TorchExchange) -> None:
        self._exchange = exchange
        self.every.append(self)

    def arrive(self, bucket: Bucket) -> None:
        self._exchange.arrive(bucket, lambda waited_s: None)

    def complete(self) -> None:
        for bucket in self._exchange.late_buckets():
            self.arrive(bucket)


def make_gloo(
    module: torch.nn.Module, optimizer: torch.optim.Optimizer, data: Batches
) -> tuple[Step, list[torch.Tensor]]:
    """torch's DistributedDataParallel with its defaults, over gloo."""
    parallel = torch.nn.parallel.DistributedDataParallel(module)
    return make_plain(parallel, optimizer, data), list(module.parameters())


def make_plain(module: torch.nn.Module, optimizer: torch.optim.Optimizer, data: Batches) -> Step:
    def step(i: int) -> None:
        inputs, targets = data[i % len(data)]
        optimizer.zero_grad()
        cross_entropy(module(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def run_stock() -> dict[str, Any]:
    """BytePS as shipped, used as its examples do: DistributedOptimizer.

    Its wait holds the GIL, which deadlocks with this version of torch. So a script must poll the handle and sleep
    briefly in between.
    """
    import byteps.torch as bps
    from byteps.torch import ops

    release = ops.synchronize

    def synchronize(handle: int) -> Any:
        while not ops.poll(handle):
            time.sleep(0.0002)
        return release(handle)

    ops.synchronize = bps.synchronize = synchronize
    bps.init()
    result = {}
    for model, iterations in STOCK_ITERATIONS.items():
        module, plain = fresh(model)
        named = [(f"{model}.{name}", parameter) for name, parameter in module.named_parameters()]
        optimizer = bps.DistributedOptimizer(plain, named_parameters=named)
        step = make_plain(module, optimizer, batches(bps.rank()))
        timed(step, STOCK_WARM_UP)
        result[model] = timed(step, iterations)
    bps.shutdown()
    return result


def run_idle() -> None:
    """Join, exchange once, print a line, and wait for a line of input."""
    from dynamix_ps.comm import open_comm

    comm = open_comm("byteps")
    comm.init()
    comm.declare("idle")
    buffer = torch.zeros(1000)  # it must live until the sum is complete
    assert comm.wait(comm.push_pull("idle", buffer), 60.0)
    print("ready", os.getpid(), flush=True)
    sys.stdin.readline()
    comm.shutdown()


if __name__ == "__main__":
    main()
