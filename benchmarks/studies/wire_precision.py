"""What do fewer bytes on the wire cost in accuracy? One process, four simulated workers, real training.

    python -m benchmarks.studies.wire_precision [--limit-s SECONDS]

Every worker computes the gradient of its quarter of the global batch, divided by the number of workers. Then the
gradients are exchanged in one of these ways:

    float32             the sum, in the order of ranks
    float32 reversed    the same sum in the reverse order: only the last bits differ. A control: this is how much two
                        trainings drift apart for no reason that matters
    bf16                every worker sends bf16(g); the sum is made in float32; all receive bf16(sum). Workers add what
                        their rounding left out to their next gradients, and the server to its next sum: with c = g + e,
                        bf16(c) is sent and e = c - bf16(c) is kept (error feedback, arXiv 1901.09847)
    int8                the same with int8

So do `cluster: {wire: bf16}` and `int8`. bf16(x) rounds to the nearest, ties to even, as torch's `.to(bfloat16)` does.
int8(x) rounds to the nearest multiple of 1/127 of the largest magnitude of 256 neighbouring values. All ways have the
same seeds for weights and order of samples, the same number of samples, and a learning rate that falls linearly to
zero, so that the last steps scatter little. Differences from float32 are paired by seed, with the 95 % interval of
Student's t. The scatter of a way is the root mean square of its differences. A way that costs nothing has a mean within
the scatter of the control, and an interval with 0 in it.

Every training is a row of wire-precision.csv, written as soon as it ends. A later call trains what is missing, stops
after `--limit-s`, and renews the page from what there is.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.report.page import RESULTS, draw, markdown, update_page, where, write_csv
from benchmarks.suite import intervals
from benchmarks.workloads import data, models, objective
from benchmarks.workloads.data_set import DataSet
from dynamix_ps.errors import UsageError
from worker_hooks.sampling.sampler import Cursor, GlobalSampler

WORKERS, MOMENTUM = 4, 0.9
BLOCK = 256  # values of int8 that have one step
SEEDS = 5
FIGURES = ("accuracy", "loss", "error")
REFERENCE = "float32"

Exchange = Callable[[torch.Tensor], torch.Tensor]  # gradients (workers, values) to their sum, or to what travels
Key = tuple[str, str, int]  # task, wire, seed
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Task:
    """What is trained. The learning rates are those of other benchmarks for the same global batch."""

    samples_of: str
    model: str
    optimizer: Callable[[Iterable[torch.nn.Parameter], float], torch.optim.Optimizer]
    rate: float
    batch: int  # samples of each worker
    iterations: int

    @property
    def samples(self) -> int:
        return self.iterations * WORKERS * self.batch


def sgd(parameters: Iterable[torch.nn.Parameter], rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=rate, momentum=MOMENTUM)


def adamw(parameters: Iterable[torch.nn.Parameter], rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=rate)


TASKS = {
    "CNN, Fashion-MNIST": Task("fashion-mnist", "cnn", sgd, 0.045, 48, 300),
    "ResNet8, CIFAR-10": Task("cifar-10", "resnet8", sgd, 0.05, 48, 120),
    "GPT, Python's library": Task("text", "gpt-small", adamw, 0.004, 16, 375),
}


def rounded(values: torch.Tensor) -> torch.Tensor:
    """float32 values as they arrive when they travel as bf16."""
    return values.to(torch.bfloat16).to(torch.float32)


def in_steps(values: torch.Tensor) -> torch.Tensor:
    """float32 values (..., values) as they arrive when they travel as int8."""
    count = values.shape[-1]
    blocks = torch.nn.functional.pad(values, (0, -count % BLOCK)).view(*values.shape[:-1], -1, BLOCK)
    step = blocks.abs().amax(-1, keepdim=True) / 127
    steps = (blocks / step.clamp_min(torch.finfo().tiny)).round()
    return (steps * step).flatten(-2)[..., :count]


def as_float32_reversed(gradients: torch.Tensor) -> torch.Tensor:
    return summed(gradients.flip(0))


class Feedback:
    """A rounding that makes up later for what it has left out."""

    def __init__(self, rounding: Exchange) -> None:
        self._rounding = rounding
        self._left_out: torch.Tensor | float = 0.0

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        corrected = values + self._left_out
        sent = self._rounding(corrected)
        self._left_out = corrected - sent
        return sent


def through(workers: Exchange, server: Exchange) -> Exchange:
    """The sum of what workers round, as the server rounds it."""
    return lambda gradients: server(summed(workers(gradients)))


def summed(parts: torch.Tensor) -> torch.Tensor:
    """Sum over the first dimension in float32, one part after the other."""
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


WIRES: dict[str, Callable[[], Exchange]] = {
    REFERENCE: lambda: summed,
    "float32 reversed": lambda: as_float32_reversed,
    "bf16": lambda: through(Feedback(rounded), Feedback(rounded)),
    "int8": lambda: through(Feedback(in_steps), Feedback(in_steps)),
}


def train(task: Task, samples: DataSet, exchange: Exchange, seed: int) -> dict[str, float]:
    """Train once. Returns test accuracy, test loss, and the mean relative error of the exchanged gradient."""
    torch.manual_seed(seed)
    inputs, labels = torch.from_numpy(samples.train.inputs), torch.from_numpy(samples.train.labels)
    model = models.make_model(task.model, samples.shape, samples.classes)
    optimizer = task.optimizer(model.parameters(), task.rate)
    parameters = list(model.parameters())
    sampler, cursor, sizes = GlobalSampler(len(labels), seed), Cursor(), [task.batch] * WORKERS
    errors = []
    for iteration in range(task.iterations):
        step = sampler.plan_step(cursor, sizes)
        cursor = step.next
        gradients = []
        for rank in range(WORKERS):
            chosen = torch.from_numpy(sampler.indices(step, rank))
            loss = objective.mean_loss(model(inputs[chosen]), labels[chosen]) * (len(chosen) / sum(step.sizes))
            gradients.append(torch.cat([part.flatten() for part in torch.autograd.grad(loss, parameters)]))
        pushed = torch.stack(gradients)
        answer = exchange(pushed)
        exact = pushed.sum(0, dtype=torch.float64)
        errors.append(float((answer - exact).norm() / exact.norm()))
        places = torch.split(answer, [parameter.numel() for parameter in parameters])
        for parameter, place in zip(parameters, places, strict=True):
            parameter.grad = place.view(parameter.shape)
        optimizer.param_groups[0]["lr"] = task.rate * (1 - iteration / task.iterations)
        optimizer.step()
    accuracy, test_loss = tested(model, samples)
    return {"accuracy": accuracy, "loss": test_loss, "error": float(np.mean(errors))}


@torch.no_grad()
def tested(model: torch.nn.Module, samples: DataSet) -> tuple[float, float]:
    """Accuracy and mean loss on all test data."""
    inputs, labels = torch.from_numpy(samples.test.inputs), torch.from_numpy(samples.test.labels)
    right, loss = 0.0, 0.0
    for x, y in zip(torch.split(inputs, 1000), torch.split(labels, 1000), strict=True):
        found = objective.scores(model(x), y)
        right += float(found["accuracy"])
        loss += float(found["loss"])
    return right / len(labels), loss / len(labels)


def missing(found: Mapping[Key, Row], tasks: Mapping[str, Task], seeds: Sequence[int]) -> Iterator[Key]:
    """Trainings that are still to be done: all wires of a seed before the next seed."""
    for seed, task, wire in itertools.product(seeds, tasks, WIRES):
        if (task, wire, seed) not in found:
            yield task, wire, seed


def read(file: Path, tasks: Mapping[str, Task]) -> dict[Key, Row]:
    """The trainings in the CSV file; none if there is no file. Raises UsageError for trainings of another length."""
    if not file.exists():
        return {}
    with file.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    for number, row in enumerate(rows, start=2):
        task = tasks.get(row["task"])
        if task is None or int(row["samples"]) != task.samples:
            raise UsageError(
                f"{file}:{number}: got {row['task']} with {row['samples']} samples, expected one of "
                f"{', '.join(f'{name} with {one.samples}' for name, one in tasks.items())}; "
                "delete the file to begin anew"
            )
    return {(row["task"], row["wire"], int(row["seed"])): dict(row) for row in rows}


def table(found: Mapping[Key, Row]) -> list[dict[str, str]]:
    """A row per task and wire. Differences are paired with float32 of the same seed."""
    rows = []
    for task, wire in itertools.product(dict.fromkeys(key[0] for key in found), WIRES):
        values = {seed: row for (name, way, seed), row in found.items() if (name, way) == (task, wire)}
        if not values:
            continue
        mean = {figure: np.mean([float(row[figure]) for row in values.values()]) for figure in FIGURES}
        row = {
            "task": task,
            "on the wire": wire,
            "seeds": str(len(values)),
            "error of the gradient": f"{mean['error']:.1e}",
            "test accuracy %": f"{100 * mean['accuracy']:.2f}",
            "test loss": f"{mean['loss']:.4f}",
        }
        for figure, title, scale, digits in (("accuracy", "points", 100, 2), ("loss", "loss", 1, 4)):
            apart = differences(found, task, wire, figure, scale)
            row[f"{title} from float32 (scatter)"] = in_words(apart, digits) if wire != REFERENCE else ""
        rows.append(row)
    return rows


def differences(found: Mapping[Key, Row], task: str, wire: str, figure: str, scale: float = 1) -> dict[int, float]:
    """From float32, by seed, of the seeds that have both."""
    return {
        seed: scale * (float(row[figure]) - float(found[task, REFERENCE, seed][figure]))
        for (name, way, seed), row in found.items()
        if (name, way) == (task, wire) and (task, REFERENCE, seed) in found
    }


def in_words(apart: Mapping[int, float], digits: int) -> str:
    """Mean, interval and scatter; nothing of less than two seeds."""
    if (mean := intervals.mean([apart])) is None:
        return ""
    scatter = math.sqrt(np.mean(np.square(list(apart.values()))))
    return f"{mean.value:+.{digits}f} [{mean.low:+.{digits}f}, {mean.high:+.{digits}f}] ({scatter:.{digits}f})"


def plot(figure: Any, found: Mapping[Key, Row]) -> None:
    """The differences of every seed."""
    tasks = list(dict.fromkeys(key[0] for key in found))
    figure.set_size_inches(10, 3.5)
    for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        for place, wire in enumerate(list(WIRES)[1:]):
            points = list(differences(found, task, wire, "accuracy", 100).values())
            axes.plot([place] * len(points), points, "o", alpha=0.6)
            if points:
                axes.plot([place - 0.2, place + 0.2], [np.mean(points)] * 2, "k-")
        axes.axhline(0, color="grey", linewidth=0.8)
        axes.set_xticks(range(len(WIRES) - 1), list(WIRES)[1:], fontsize="small")
        axes.set(title=task, ylabel="points of test accuracy from float32")


def main(arguments: Sequence[str] | None = None, tasks: Mapping[str, Task] = TASKS) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the page (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many (default: %(default)s)")
    parser.add_argument("--limit-s", type=float, default=math.inf, help="start no training after this time")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)  # several would wait for each other on a busy machine
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "wire-precision.csv"
    found, began_s = read(file, tasks), time.monotonic()
    loaded: dict[str, DataSet] = {}
    for task, wire, seed in missing(found, tasks, range(1, args.seeds + 1)):
        if (started_s := time.monotonic()) - began_s > args.limit_s:
            break
        name = tasks[task].samples_of
        samples = loaded.get(name) or loaded.setdefault(name, data.load(name))
        figures = train(tasks[task], samples, WIRES[wire](), seed)
        took_s = time.monotonic() - started_s
        found[task, wire, seed] = {
            "task": task,
            "wire": wire,
            "seed": seed,
            "samples": tasks[task].samples,
            **{figure: f"{figures[figure]:.6g}" for figure in FIGURES},
            "took_s": f"{took_s:.1f}",
        }
        write_csv(file, list(found.values()))
        print(f"{task}, {wire}, seed {seed}: {figures['accuracy']:.4f} in {took_s:.0f} s", flush=True)
    left = len(list(missing(found, tasks, range(1, args.seeds + 1))))
    print(f"{left} trainings are left" if left else "all trainings are done", flush=True)
    if not found:
        return
    draw(args.out / "wire-precision.png", lambda figure: plot(figure, found))
    took_s = sum(float(row["took_s"]) for row in found.values())
    told = f"`python -m benchmarks.studies.wire_precision`: {took_s:,.0f} s of training on {where()}."
    update_page(args.out / "wire-precision.md", f"{told}\n\n{markdown(table(found))}\n")
    print(markdown(table(found)))


if __name__ == "__main__":
    main()
