"""Cost of the hooks on the training thread: a script with the hook against one that only sums gradients, in one run.

    python -m benchmarks.parts.hooks --json FILE

Two workers train the CNN, and then a small MLP, on real BytePS with a real arbitrator. Each worker has four copies of
the model. Two are attached with mode observe: checks of parameters, weights and order, votes, norms, records,
reports. Two are bare: they sum the same gradients in the same buckets over the same data plane, and do nothing else.
A round is one iteration of each copy; the order rotates from round to round. Equal copies differ by up to 1 % because
of their place in memory and in the round alone. So there are two copies of each kind, made in the order bare, hook,
hook, bare. The second hook has no arbitrator, as a worker has one connection.

Per run, the overhead is the mean over rounds of (hook - bare), divided by the mean iteration time of the bare copies.
It is a mean because part of the cost occurs only every few iterations. The TRIM largest and smallest differences
(interruptions by other programs) are left out. `overhead` is the mean of several runs with fresh processes, because the
place of the models in memory changes a single run by about 1 % either way.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.nn.functional import cross_entropy

from benchmarks.workloads import models
from dynamix_ps.comm import Comm
from worker_hooks.exchange.gradient_exchange import bucket_layout
from worker_hooks.joining import join
from worker_hooks.sampling.sampler import Cursor, GlobalSampler
from worker_hooks.session import Session
from worker_hooks.settings import Settings
from worker_hooks.torch.adapter import TorchAdapter
from worker_hooks.torch.data.batches import fetch

MODELS = ("cnn", "mlp")
BATCH = 64
WARM_UP = 20
TRIM = 0.05  # of the rounds, on each side
COPIES = ("bare", "hook", "hook", "bare")
CLUSTER = """
name: hooks
mode: observe
window: 20
emulation: none
cluster:
  workers: [{{batch: {batch}}}, {{batch: {batch}}}]
policy: {{name: proportional}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--rounds", type=int, default=300, help="iterations of each copy in each run")
    parser.add_argument("--runs", type=int, default=6, help="runs with fresh processes")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        run_worker(args.models[0], args.rounds, args.worker)
        return
    rows = []
    for number in range(args.runs):
        for model in args.models:
            print(f"run {number + 1} of {args.runs}, {model}", file=sys.stderr, flush=True)
            rows += [{"run": number, "model": model, **row} for row in measure(model, args.rounds)]
    table = Table(title="hook cost on the training thread, 2 workers")
    for column in ("model", "run", "worker", "bare ms", "hook ms", "difference ms", "overhead"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row["model"],
            str(row["run"] + 1),
            str(row["worker"]),
            f"{row['bare_ms']:.3f}",
            f"{row['hook_ms']:.3f}",
            f"{row['difference_ms']:+.4f}",
            f"{row['overhead']:+.2%}",
        )
    Console().print(table)
    overhead = {}
    for model in args.models:
        found = [row["overhead"] for row in rows if row["model"] == model]
        overhead[model] = statistics.fmean(found)
        scatter = f"runs and workers: {min(found):+.2%} to {max(found):+.2%}"
        print(f"{model}: overhead {overhead[model]:+.2%} of an iteration ({scatter})")
    if args.json:
        figures = {"overhead": overhead, "runs": rows, "rounds": args.rounds, "batch": BATCH, "cores": os.cpu_count()}
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


def measure(model: str, rounds: int) -> list[dict[str, Any]]:
    """Run both workers under the launcher once and read their results."""
    with tempfile.TemporaryDirectory(prefix="dynamix-hooks-") as folder:
        config, results = Path(folder, "hooks.yaml"), Path(folder, "results")
        results.mkdir()
        config.write_text(CLUSTER.format(batch=BATCH))
        worker = ["python", "-m", "benchmarks.parts.hooks", "--models", model, "--rounds", str(rounds)]
        worker += ["--worker", str(results)]
        launch = [sys.executable, "-m", "dynamix_ps.cli.main", "launch", "-c", str(config), "--run-dir", folder]
        subprocess.run([*launch, "--", *worker], check=True, stdout=subprocess.DEVNULL)
        return [json.loads(file.read_text()) for file in sorted(results.iterdir())]


def run_worker(model: str, rounds: int, results: Path) -> None:
    """Run one worker: alternate iterations of both kinds and write the means."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images = torch.utils.data.TensorDataset(torch.randn(4096, 1, 28, 28), torch.randint(0, 10, (4096,)))
    settings = Settings.from_environment()
    session = Session.join(settings, "torch")
    apart = dataclasses.replace(settings, run_dir=None, arbitrator=None)
    steps = [
        with_hook(model, Session.join(settings if number == 1 else apart, "torch"), images, rounds + WARM_UP)
        if kind == "hook"
        else bare(model, session.comm, number, images, settings.config.bucket_bytes)
        for number, kind in enumerate(COPIES)
    ]
    loops = [timed(step) for step in steps]
    differences: list[tuple[float, float]] = []  # per round: seconds of the bare copies, additional ones of the hooks
    for number in range(rounds + WARM_UP):
        times_s = [0.0] * len(loops)
        turned = [(number + place) % len(loops) for place in range(len(loops))]
        for copy in turned if number // len(loops) % 2 else reversed(turned):
            times_s[copy] = next(loops[copy])
        seconds = {kind: sum(t for t, k in zip(times_s, COPIES, strict=True) if k == kind) / 2 for kind in COPIES}
        differences.append((seconds["bare"], seconds["hook"] - seconds["bare"]))
    kept = sorted(differences[WARM_UP:], key=lambda pair: pair[1])
    trimmed = int(len(kept) * TRIM)
    plain, difference = map(statistics.fmean, zip(*kept[trimmed : len(kept) - trimmed], strict=True))
    rank = int(os.environ["DMLC_WORKER_ID"])
    row = {
        "worker": rank,
        "bare_ms": plain * 1e3,
        "hook_ms": (plain + difference) * 1e3,
        "difference_ms": difference * 1e3,
        "overhead": difference / plain,
    }
    (results / f"worker-{rank}.json").write_text(json.dumps(row))


def timed(steps: Iterator[None]) -> Iterator[float]:
    """The seconds of each step."""
    while True:
        began_s = time.perf_counter()
        next(steps)
        yield time.perf_counter() - began_s


def with_hook(name: str, session: Session, images: Any, iterations: int) -> Iterator[None]:
    """Train a model of its own with the hook."""
    model = models.make_model(name, (1, 28, 28), 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run = join(TorchAdapter([model], [optimizer]), images, session)
    for inputs, targets in run.batches(iterations=iterations):
        optimizer.zero_grad()
        logits = model(inputs)
        run.backward(cross_entropy(logits, targets), correct=(logits.argmax(1) == targets).sum())
        optimizer.step()
        yield


def bare(name: str, comm: Comm, number: int, images: Any, bucket_bytes: int) -> Iterator[None]:
    """Train a model of its own on the same slices; its gradients are averaged by hooks that do nothing else."""
    model = models.make_model(name, (1, 28, 28), 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    averaged = AveragedGradients(model, comm, f"bare.{number}", bucket_bytes)
    sampler, cursor, sizes = GlobalSampler(len(images), seed=0), Cursor(), (BATCH,) * comm.size
    while True:
        step = sampler.plan_step(cursor, sizes)
        inputs, targets = fetch(images, sampler.indices(step, comm.rank))
        cursor = step.next
        optimizer.zero_grad()
        logits = model(inputs)
        loss, _ = cross_entropy(logits, targets), (logits.argmax(1) == targets).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        averaged.wait()
        with torch.autograd.profiler.record_function("step"):  # as step() does; the hooks would refuse its gradients
            torch.optim.SGD.step.__wrapped__(optimizer)  # type: ignore[attr-defined]
        yield


class AveragedGradients:
    """The least that an exchange can do: scale, send full buckets while backward runs, wait."""

    def __init__(self, model: torch.nn.Module, comm: Comm, name: str, bucket_bytes: int) -> None:
        parameters = list(model.parameters())
        sizes = [p.numel() * p.element_size() for p in parameters]
        self._comm, self._handles = comm, list[int]()
        groups = bucket_layout(sizes, [0] * len(sizes), bucket_bytes, comm.least_bucket_bytes)
        for number, group in enumerate(filter(None, groups)):
            members = [parameters[index] for index in group]
            buffer = torch.from_numpy(comm.allocate(sum(p.numel() for p in members), "float32"))
            places = torch.split(buffer, [p.numel() for p in members])
            comm.declare(f"{name}.{number}")
            missing = set(members)
            for parameter, place in zip(members, places, strict=True):
                parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    functools.partial(
                        self._take, place.view_as(parameter), buffer, f"{name}.{number}", members, missing
                    )
                )

    def _take(self, place: Any, buffer: Any, name: str, members: Any, missing: set[Any], parameter: Any) -> None:
        torch.mul(parameter.grad, 1 / self._comm.size, out=place)
        parameter.grad = place
        missing.discard(parameter)
        if not missing:
            missing.update(members)
            self._handles.append(self._comm.push_pull(name, buffer))

    def wait(self) -> None:
        for handle in self._handles:
            while not self._comm.wait(handle, 1.0):
                pass
        self._handles.clear()


if __name__ == "__main__":
    main()
