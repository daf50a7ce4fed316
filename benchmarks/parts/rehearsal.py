"""Speed of a rehearsal: a process that computes for all workers, against plain torch on the same batches.

    python -m benchmarks.parts.rehearsal --json FILE

The cluster has WORKERS workers of three speeds, and `proportional` decides, so sizes differ and change. The models are
a convolutional network without batch norm, whose batch is computed as one in nine of ten iterations, and one with batch
norm, whose batch is computed worker by worker. Both ways, each a process of its own, train for PASS_ITERATIONS
iterations in turns, in the order plain, rehearsed, rehearsed, plain. `ratio` is the time per sample of the rehearsal
over that of plain torch, from the means over all rounds; at most RATIO_LIMIT for the model without batch norm.
`cpu_ratio` is the same of CPU time, which other work on the machine hardly changes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import dynamix_ps.torch as dynamix
from benchmarks.workloads.models import make_model
from dynamix_ps.config import variables
from dynamix_ps.config.schema import BatchBounds, Cluster, Config, PolicySection, WorkerSection
from dynamix_ps.run_record.run_folder import RunFolder
from dynamix_ps.sim.scenario.load import Scenario, dump_scenario

RATIO_LIMIT = 1.3
WORKERS, BATCH = 8, 32
PASS_ITERATIONS = 20
SAMPLES = 8192


class Seconds(NamedTuple):
    """Per sample: that passed, and of CPU time."""

    wall_s: float
    cpu_s: float


def with_batch_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 10),
    )  # fmt: skip


MODELS: dict[str, Callable[[], nn.Module]] = {
    "cnn": lambda: make_model("cnn", (1, 28, 28), 10),
    "batch norm": with_batch_norm,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--rounds", type=int, default=5, help="two passes of each way in each round")
    args = parser.parse_args()
    figures = {name: measure(name, args.rounds) for name in MODELS}
    table = Table(title=f"rehearsal of {WORKERS} workers, \u00b5s per sample")
    for column in ("model", "plain", "rehearsed", "ratio", "CPU ratio"):
        table.add_column(column, justify="right")
    for name, one in figures.items():
        ratios = (f"{one[ratio]:.3f}" for ratio in ("ratio", "cpu_ratio"))
        table.add_row(name, f"{one['plain_us']:.1f}", f"{one['rehearsed_us']:.1f}", *ratios)
    Console().print(table)
    print(f"cnn {figures['cnn']['ratio']:.3f} (at most {RATIO_LIMIT})")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


def measure(model: str, rounds: int) -> dict[str, float]:
    """Microseconds per sample of both ways."""
    seconds: dict[str, list[Seconds]] = {way: [] for way in WAYS}
    with ExitStack() as stack:
        passes = {way: stack.enter_context(passes_in_process(way, model)) for way in WAYS}
        for one_pass in passes.values():
            one_pass()  # the first is slow
        for _ in range(rounds):
            for way in ("plain", "rehearsed", "rehearsed", "plain"):
                seconds[way].append(passes[way]())
    us, cpu_us = (
        {way: 1e6 * mean(getattr(one, kind) for one in each) for way, each in seconds.items()}
        for kind in Seconds._fields
    )
    ratio, cpu_ratio = (one["rehearsed"] / one["plain"] for one in (us, cpu_us))
    return {"plain_us": us["plain"], "rehearsed_us": us["rehearsed"], "ratio": ratio, "cpu_ratio": cpu_ratio}


@contextmanager
def passes_in_process(way: str, model: str) -> Iterator[Callable[[], Seconds]]:
    """A process of its own; each call makes one pass there and returns its seconds per sample."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve_passes, args=(theirs, way, model), daemon=True)
    process.start()
    theirs.close()

    def one_pass() -> Seconds:
        ours.send(True)
        seconds: Seconds = ours.recv()
        return seconds

    try:
        yield one_pass
    finally:
        ours.send(False)
        process.join()


def serve_passes(connection: Connection, way: str, model: str) -> None:
    """Runs in the process of one way."""
    torch.set_num_threads(1)
    passes = WAYS[way](MODELS[model]())
    while connection.recv():
        connection.send(next(passes))
    passes.close()


def make_data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(
        torch.randn(SAMPLES, 1, 28, 28, generator=generator), torch.randint(0, 10, (SAMPLES,), generator=generator)
    )


def plain_passes(model: nn.Module) -> Generator[Seconds, None, None]:
    """Seconds per sample of each pass in plain torch."""
    data, optimizer = make_data(), torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def batches() -> Iterator[Any]:
        while True:
            order = torch.randperm(SAMPLES)
            for begin in range(0, SAMPLES, WORKERS * BATCH):
                yield data[order[begin : begin + WORKERS * BATCH]]

    endless = batches()
    while True:
        yield seconds_of(islice(endless, PASS_ITERATIONS), model, optimizer, lambda loss: loss.backward())


def rehearsed_passes(model: nn.Module) -> Generator[Seconds, None, None]:
    """Seconds per sample of each pass of a rehearsal."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    with tempfile.TemporaryDirectory(prefix="dynamix-") as folder:
        prepare(RunFolder(Path(folder)))
        run = dynamix.attach(model, optimizer, make_data())
        endless = run.batches(epochs=10_000)
        try:
            while True:
                yield seconds_of(islice(endless, PASS_ITERATIONS), model, optimizer, run.backward)
        finally:
            run.close()


def prepare(folder: RunFolder) -> None:
    """From now on `attach()` joins a rehearsed cluster."""
    for part in (folder.workers_dir, folder.roles_dir, folder.arbitrator_dir):
        part.mkdir(parents=True)
    config = Config(
        cluster=Cluster(workers=tuple(WorkerSection(batch=BATCH) for _ in range(WORKERS))),
        batch=BatchBounds(min=4, max=4 * BATCH),
        policy=PolicySection(name="proportional"),
    )
    folder.write_config(config)
    speeds = (1.0, 0.5, 0.25)
    workers = [{"per_sample_s": 2e-4 / speeds[rank % len(speeds)]} for rank in range(WORKERS)]
    scenario = folder.path / "scenario.yaml"
    scenario.write_text(dump_scenario(Scenario.model_validate({"name": "uneven", "workers": tuple(workers)})))
    os.environ[variables.CONFIG] = str(folder.config_file)
    os.environ[variables.RUN_DIR] = str(folder.path)
    os.environ[variables.RUN_ID] = folder.path.name
    os.environ[variables.REHEARSAL] = str(scenario)


def seconds_of(batches: Iterable[Any], model: nn.Module, optimizer: torch.optim.Optimizer, backward: Any) -> Seconds:
    begun_s, begun_cpu_s, iterations, samples = time.perf_counter(), time.process_time(), 0, 0
    for inputs, targets in batches:
        optimizer.zero_grad()
        backward(cross_entropy(model(inputs), targets))
        optimizer.step()
        iterations, samples = iterations + 1, samples + len(inputs)
    assert iterations == PASS_ITERATIONS, f"a pass had {iterations} iterations, expected {PASS_ITERATIONS}"
    return Seconds((time.perf_counter() - begun_s) / samples, (time.process_time() - begun_cpu_s) / samples)


WAYS = {"plain": plain_passes, "rehearsed": rehearsed_passes}

if __name__ == "__main__":
    main()
