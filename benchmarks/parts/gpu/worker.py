"""One process of a check of `benchmarks.parts.gpu_check`. Writes its figures to `worker-RANK.json` in a folder.

python -m benchmarks.parts.gpu.worker MODE --device cuda --out FOLDER
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import itertools
import json
import os
import signal
import statistics
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from benchmarks.parts.gpu.run import MEMORY_SIZES, SIZES
from benchmarks.workloads import models
from dynamix_ps.comm import Comm, open_comm
from worker_hooks.sampling.sampler import Cursor, GlobalSampler
from worker_hooks.session import Session
from worker_hooks.settings import Settings
from worker_hooks.torch.data.batches import fetch

SAMPLES = 1024
ITERATIONS = 20
MEMORY_ITERATIONS = 4  # of larger batches
SPOILED = 3  # the iteration in which worker 1 has an infinite gradient, with mixed precision
LATE_S = 3.0
LENGTHS = (1, 1000, 1_000_003)
ROUNDS = 30
TYPES = (torch.float16, torch.float32, torch.float64, torch.int32, torch.int64)
WARM_UP, TIMED = 10, 40
PATIENCE_S = 60.0

MODES = ("sums", "devices", "late", "stopped", "train", "amp", "loader", "memory", "devices-differ", "times", "ddp")

Figures = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--model", default="cnn", help="of times and ddp")
    parser.add_argument("--device", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shared", action="store_true", help="all workers have one GPU")
    parser.add_argument("--backend", default="nccl", help="of DistributedDataParallel")
    args = parser.parse_args()
    rank = int(os.environ[{"devices": "BYTEPS_LOCAL_RANK", "ddp": "RANK"}.get(args.mode, "DMLC_WORKER_ID")])
    choose_device(args.mode, args.shared, rank)
    device = torch.device("cpu" if args.mode == "devices-differ" and rank == 1 else args.device)
    figures: Figures
    if args.mode == "sums":
        figures = sums(joined(), device)
    elif args.mode == "devices":
        comm = open_comm("byteps")
        comm.init()
        figures = sums(comm, device)
        comm.shutdown()
    elif args.mode == "late":
        figures = late(joined(), device)
    elif args.mode == "ddp":
        figures = timed(with_ddp(args.model, args.backend, device), device)
    elif args.mode == "times":
        figures = timed(with_hook(args.model, device), device)
    elif args.mode in ("stopped", "devices-differ"):
        figures = trains(device, stops=args.mode == "stopped")
    else:
        figures = against_one_process(device, args.mode)
    (args.out / f"worker-{rank}.json").write_text(json.dumps(figures))


def choose_device(mode: str, shared: bool, rank: int) -> None:
    """Before CUDA starts: which GPU this process sees. With one GPU for all, NCCL must take them for several hosts."""
    if shared:
        os.environ["NCCL_HOSTID"] = f"worker-{rank}"
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    elif mode == "devices":
        if torch.cuda.is_available():
            torch.cuda.set_device(rank)
    elif mode == "ddp":
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", str(rank))
    elif "NVIDIA_VISIBLE_DEVICES" in os.environ:
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", os.environ["NVIDIA_VISIBLE_DEVICES"])


def joined() -> Comm:
    """The data plane of this worker, as the hook joins it."""
    session = Session.join(Settings.from_environment(), "torch")
    session.start(batch_sizes=(1,), iteration=0, framework="torch")
    return session.comm


# -- sums --------------------------------------------------------------------------------------------------------------


def sums(comm: Comm, device: torch.device) -> Figures:
    """Sums of whole numbers, several at once, started right after the kernels that fill the buffers."""
    keys = [(f"{length}.{dtype}", length, dtype) for length in LENGTHS for dtype in TYPES]
    for name, _, _ in keys:
        comm.declare(name)
    busy = torch.randn(2048 if device.type == "cuda" else 64, 2048, device=device)
    wrong = 0
    for number in range(ROUNDS if device.type == "cuda" else 3):
        started = []
        for name, length, dtype in keys:
            _ = busy @ busy.T  # the next kernels have to wait for this one
            base = torch.arange(length, device=device) % 97 + number
            buffer = (base + comm.rank).to(dtype)
            expected = (base * comm.size + sum(range(comm.size))).to(dtype)
            started.append((comm.push_pull(name, buffer), buffer, expected))
        for handle, buffer, expected in started:
            wrong += not comm.wait(handle, PATIENCE_S) or not torch.equal(buffer, expected)
    return {"sums": len(keys) * (number + 1), "wrong": wrong}


def late(comm: Comm, device: torch.device) -> Figures:
    """Worker 1 starts a sum LATE_S after worker 0, which waits in steps of a second."""
    buffer = torch.zeros(1000, device=device)
    comm.declare("late")
    wrong = not comm.wait(comm.push_pull("late", buffer), PATIENCE_S)
    buffer.fill_(comm.rank + 1)
    if comm.rank == 1:
        time.sleep(LATE_S)
    began_s = time.monotonic()
    handle = comm.push_pull("late", buffer)
    waits_s = []
    while True:
        before_s = time.monotonic()
        if comm.wait(handle, 1.0):
            break
        waits_s.append(round(time.monotonic() - before_s, 2))
        if time.monotonic() - began_s > PATIENCE_S:
            return {"wrong": True, "waits_s": waits_s, "waited_s": PATIENCE_S}
    waited_s = round(time.monotonic() - began_s, 2)
    wrong |= not torch.equal(buffer, torch.full_like(buffer, 3))
    return {"wrong": bool(wrong), "waits_s": waits_s, "waited_s": waited_s}


# -- training ----------------------------------------------------------------------------------------------------------


def data_set(shape: models.Shape, dtype: torch.dtype) -> torch.utils.data.TensorDataset:
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(SAMPLES, *shape, generator=generator, dtype=dtype)
    return torch.utils.data.TensorDataset(inputs, torch.randint(0, 10, (SAMPLES,), generator=generator))


def fresh(name: str, device: torch.device, dtype: torch.dtype = torch.float32) -> tuple[Any, Any, Any]:
    """Model, optimizer and data set; the same in all processes."""
    torch.manual_seed(0)
    shape = models.MODELS[name].shapes[0]
    model = models.make_model(name, shape, 10).to(device, dtype)
    return model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), data_set(shape, dtype)


def against_one_process(device: torch.device, mode: str) -> Figures:
    """Train with the hook, then the same batches in this process alone, and compare the weights.

    With mixed precision the process alone computes the same slices as the workers, because rounding depends on them.
    """
    import dynamix_ps.torch as dynamix

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    mixed, sizes = mode == "amp", MEMORY_SIZES if mode == "memory" else SIZES
    model, optimizer, data = fresh("cnn", device, torch.float32 if mixed else torch.float64)
    alone, before = copy.deepcopy(model), weights(model)
    loader = torch.utils.data.DataLoader(data, sum(SIZES), num_workers=2, pin_memory=device.type == "cuda")
    run = (
        dynamix.attach(model, optimizer, loader) if mode == "loader" else dynamix.attach(model, optimizer, data, seed=0)
    )
    at_once: list[int] = []
    first = next(one for one in model.modules() if not list(one.children()))
    first.register_forward_pre_hook(lambda _, inputs: at_once.append(len(inputs[0])))
    if mode == "memory" and run.rank == 1:
        limit_memory(alone, data, sizes[1], device)
    scaler = GradScaler(device, mixed)
    iterations = MEMORY_ITERATIONS if mode == "memory" else ITERATIONS
    for number, batch in enumerate(run.batches(iterations=iterations)):
        optimizer.zero_grad()
        run.backward(scaler.scale(loss_of(model, batch, device, mixed, run.rank == 1 and number == SPOILED)))
        scaler.step(optimizer)
    with_hook = weights(model)
    run.close()
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(1.0)
    batches = passes(loader) if mode == "loader" else slices_of(data, sizes, whole=not mixed)
    skipped_alone = train_alone(alone, itertools.islice(batches, iterations), device, mixed)
    reference = weights(alone)
    scale = (reference - before).norm() if mixed else reference.abs().max()
    distance = (with_hook - reference).norm() if mixed else (with_hook - reference).abs().max()
    return {
        "difference": float(distance / scale),
        "skipped_steps": scaler.skipped,
        "skipped_alone": skipped_alone,
        "at_once": at_once[-1],
        "digest": hashlib.sha256(with_hook.cpu().numpy().tobytes()).hexdigest()[:12],
    }


def limit_memory(model: Any, data: Any, samples: int, device: torch.device) -> None:
    """Leave this process an eighth of the GPU memory that so many samples need at once. Does nothing on the CPU."""
    if device.type != "cuda":
        return
    before = torch.cuda.memory_allocated()
    loss = loss_of(model, fetch(data, np.arange(samples)), device, mixed=False, spoiled=False)
    torch.autograd.grad(loss, list(model.parameters()))
    needed = torch.cuda.max_memory_allocated() - before
    del loss
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + needed / 8) / total)


class GradScaler(torch.amp.GradScaler):
    """Counts the steps that it skips; does nothing else unless precision is mixed."""

    def __init__(self, device: torch.device, mixed: bool) -> None:
        super().__init__(device.type, enabled=mixed, init_scale=1024.0)
        self.skipped = 0

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        before = self.get_scale()
        super().step(optimizer, *args, **kwargs)
        self.update()
        self.skipped += self.get_scale() < before


def loss_of(model: Any, batch: Any, device: torch.device, mixed: bool, spoiled: bool) -> torch.Tensor:
    """The mean loss of a batch; `spoiled`: its gradient is infinite, where precision is mixed."""
    inputs, targets = batch
    half = torch.float16 if device.type == "cuda" else torch.bfloat16
    with torch.autocast(device.type, dtype=half, enabled=mixed):
        logits = model(inputs.to(device))
        if mixed and spoiled:
            logits.register_hook(lambda gradient: gradient * float("inf"))
        return cross_entropy(logits, targets.to(device))


def slices_of(data: Any, sizes: tuple[int, int], whole: bool) -> Iterator[list[Any]]:
    """Every iteration's batches: those of the workers, or the `whole` global batch as one."""
    sampler, cursor = GlobalSampler(len(data), seed=0), Cursor()
    while True:
        step = sampler.plan_step(cursor, sizes)
        cursor = step.next
        slices = [sampler.indices(step, rank) for rank in range(len(sizes))]
        yield [fetch(data, indices) for indices in ([np.concatenate(slices)] if whole else slices)]


def passes(loader: Iterable[Any]) -> Iterator[list[Any]]:
    """Every iteration's batch of a loader, pass after pass."""
    while True:
        for batch in loader:
            yield [batch]


def train_alone(model: Any, batches: Iterator[list[Any]], device: torch.device, mixed: bool) -> int:
    """The same training in one process: sum(b_i * g_i) / B over the batches of an iteration.

    Returns how many steps the scaler skipped.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    scaler, parameters = GradScaler(device, mixed), list(model.parameters())
    for number, parts in enumerate(batches):
        samples = sum(len(targets) for _, targets in parts)
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        for batch in parts:
            loss = loss_of(model, batch, device, mixed, number == SPOILED)
            for parameter, gradient in zip(
                parameters, torch.autograd.grad(scaler.scale(loss), parameters), strict=True
            ):
                parameter.grad.add_(gradient, alpha=len(batch[1]) / samples)
        scaler.step(optimizer)
    return scaler.skipped


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().double().flatten() for parameter in model.parameters()])


def trains(device: torch.device, stops: bool) -> Figures:
    """A training in which worker 1, if it `stops`, stops for ever after some iterations."""
    import dynamix_ps.torch as dynamix

    model, optimizer, data = fresh("cnn", device)
    run = dynamix.attach(model, optimizer, data)
    for inputs, targets in run.batches(iterations=ITERATIONS):
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs.to(device)), targets.to(device))
        if stops and run.rank == 1 and run.iteration == ITERATIONS // 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        run.backward(loss)
        optimizer.step()
    return {}


# -- times -------------------------------------------------------------------------------------------------------------


def with_hook(name: str, device: torch.device) -> Iterator[None]:
    """Iterations of a training with the hook."""
    import dynamix_ps.torch as dynamix

    model, optimizer, data = fresh(name, device)
    run = dynamix.attach(model, optimizer, data)
    for inputs, targets in run.batches(iterations=WARM_UP + TIMED):
        optimizer.zero_grad()
        run.backward(cross_entropy(model(inputs.to(device)), targets.to(device)))
        optimizer.step()
        yield


def with_ddp(name: str, backend: str, device: torch.device) -> Iterator[None]:
    """Iterations with torch's DistributedDataParallel, batches of the same sizes."""
    import torch.distributed as dist

    dist.init_process_group(backend)
    model, optimizer, data = fresh(name, device)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    rng = np.random.default_rng(dist.get_rank())
    for _ in range(WARM_UP + TIMED):
        inputs, targets = fetch(data, rng.choice(SAMPLES, SIZES[dist.get_rank()], replace=False))
        optimizer.zero_grad()
        cross_entropy(parallel(inputs.to(device)), targets.to(device)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        yield
    dist.destroy_process_group()


def timed(iterations: Iterator[None], device: torch.device) -> Figures:
    """Median milliseconds of an iteration, the work of the GPU included."""
    times_s = []
    began_s = time.perf_counter()
    for _ in iterations:
        if device.type == "cuda":
            torch.cuda.synchronize()
        now_s = time.perf_counter()
        times_s.append(now_s - began_s)
        began_s = now_s
    return {"median_ms": statistics.median(times_s[WARM_UP:]) * 1e3}


if __name__ == "__main__":
    main()
