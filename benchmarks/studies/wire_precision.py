"""What do fewer bytes on the wire cost in accuracy? One process, four simulated workers, real training.

    python -m benchmarks.studies.wire_precision [--limit-s SECONDS]

Every worker computes the gradient of its quarter of the global batch, divided by the number of workers. Then the
gradients are exchanged in one of these ways:

    float32             the sum, in the order of ranks
    float32 reversed    the same sum in the reverse order: only the last bits differ. A control: this is how much two
                        trainings drift apart for no reason that matters
    bf16                every worker sends bf16(g); the sum is made in float32; all receive bf16(sum)
    bf16 with feedback  as bf16, and every worker adds what its rounding left out to its next gradient:
                        c = g + e, it sends bf16(c), e = c - bf16(c) (error feedback, arXiv 1901.09847)
    bf16, feedback at both ends   the same, and the server adds what its rounding left out to its next sum: what
                        `cluster: {wire: bf16}` does
    int8, feedback at both ends   the same with int8: what `cluster: {wire: int8}` does

bf16(x) rounds to the nearest, ties to even, as torch's `.to(bfloat16)` does. int8(x) rounds to the nearest multiple of
1/127 of the largest magnitude of 256 neighbouring values. All ways have the same seeds for weights
and order of samples, the same number of samples, and a learning rate that falls linearly to zero, so that the last
steps scatter little. The table has differences from float32, paired by seed.

Every training is a row of wire-precision.csv, written as soon as it ends. A later call trains what is missing, stops
after `--limit-s`, and renews the page from what there is.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from benchmarks.report.page import RESULTS, draw, markdown, update_page, where, write_csv
from benchmarks.workloads import data, models
from benchmarks.workloads.data_set import DataSet
from dynamix_ps.errors import UsageError
from worker_hooks.sampling.sampler import Cursor, GlobalSampler

WORKERS, BATCH, MOMENTUM = 4, 48, 0.9  # BATCH: of each worker
BLOCK = 256  # values of int8 that have one step
SEEDS = 5
FIGURES = ("accuracy", "loss", "error")
REFERENCE = "float32"

Exchange = Callable[[torch.Tensor], torch.Tensor]  # gradients (workers, values) to their sum, or to what travels
Key = tuple[str, str, int]  # task, wire, seed
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Task:
    """What is trained. The learning rates are those of the benchmark's workloads for the same global batch."""

    images: str
    model: str
    rate: float
    iterations: int

    @property
    def samples(self) -> int:
        return self.iterations * WORKERS * BATCH


TASKS = {
    "CNN, Fashion-MNIST": Task("fashion-mnist", "cnn", 0.045, 300),
    "ResNet8, CIFAR-10": Task("cifar-10", "resnet8", 0.05, 120),
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


def as_float32(gradients: torch.Tensor) -> torch.Tensor:
    return summed(gradients)


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
    REFERENCE: lambda: as_float32,
    "float32 reversed": lambda: as_float32_reversed,
    "bf16": lambda: through(rounded, rounded),
    "bf16 with feedback": lambda: through(Feedback(rounded), rounded),
    "bf16, feedback at both ends": lambda: through(Feedback(rounded), Feedback(rounded)),
    "int8, feedback at both ends": lambda: through(Feedback(in_steps), Feedback(in_steps)),
}


def train(task: Task, images: DataSet, exchange: Exchange, seed: int) -> dict[str, float]:
    """Train once. Returns test accuracy, test loss, and the mean relative error of the exchanged gradient."""
    torch.manual_seed(seed)
    inputs, labels = torch.from_numpy(images.train.inputs), torch.from_numpy(images.train.labels)
    model = models.make_model(task.model, images.shape, images.classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=task.rate, momentum=MOMENTUM)
    parameters = list(model.parameters())
    sampler, cursor, sizes = GlobalSampler(len(labels), seed), Cursor(), [BATCH] * WORKERS
    errors = []
    for iteration in range(task.iterations):
        step = sampler.plan_step(cursor, sizes)
        cursor = step.next
        gradients = []
        for rank in range(WORKERS):
            chosen = torch.from_numpy(sampler.indices(step, rank))
            loss = cross_entropy(model(inputs[chosen]), labels[chosen]) * (len(chosen) / sum(step.sizes))
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
    accuracy, test_loss = tested(model, images)
    return {"accuracy": accuracy, "loss": test_loss, "error": float(np.mean(errors))}


@torch.no_grad()
def tested(model: torch.nn.Module, images: DataSet) -> tuple[float, float]:
    """Accuracy and mean loss on all test data."""
    inputs, labels = torch.from_numpy(images.test.inputs), torch.from_numpy(images.test.labels)
    right, loss = 0, 0.0
    for x, y in zip(torch.split(inputs, 1000), torch.split(labels, 1000), strict=True):
        logits = model(x)
        right += int((logits.argmax(1) == y).sum())
        loss += float(cross_entropy(logits, y, reduction="sum"))
    return right / len(labels), loss / len(labels)


@dataclass(frozen=True, slots=True)
class Difference:
    """A mean over paired differences, its standard error, and the smallest true difference that they can show.

    "Can show" means: a two-sided t test at 5 % finds it in 80 % of such studies.
    """

    mean: float
    standard_error: float
    detectable: float
    pairs: int


def difference(pairs: Sequence[tuple[float, float]]) -> Difference:
    """Of the second values from the first ones. Needs two pairs at least."""
    values = np.array([second - first for first, second in pairs])
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    freedom = len(values) - 1
    detectable = (student_quantile(0.975, freedom) + student_quantile(0.8, freedom)) * error
    return Difference(float(values.mean()), error, detectable, len(values))


def student_quantile(probability: float, freedom: int) -> float:
    """Of Student's t distribution, for probabilities from 0.5 to 0.99; the density is integrated numerically."""
    x: NDArray[np.float64] = np.linspace(0, 100, 400_001)
    log_scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)
    density = np.exp(log_scale - (freedom + 1) / 2 * np.log1p(x**2 / freedom))
    below = 0.5 + np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2 * (x[1] - x[0]))])
    return float(np.interp(probability, below, x))


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
        for title, figure, scale, digits in (("points", "accuracy", 100, 2), ("loss", "loss", 1, 4)):
            pairs = [
                (scale * float(found[task, REFERENCE, seed][figure]), scale * float(one[figure]))
                for seed, one in values.items()
                if (task, REFERENCE, seed) in found
            ]
            row[f"{title} from float32, ± standard error (can show)"] = (
                "" if wire == REFERENCE or len(pairs) < 2 else _in_words(difference(pairs), digits)
            )
        rows.append(row)
    return rows


def _in_words(found: Difference, digits: int) -> str:
    return f"{found.mean:+.{digits}f} ± {found.standard_error:.{digits}f} ({found.detectable:.{digits}f})"


def plot(figure: Any, found: Mapping[Key, Row]) -> None:
    """The differences of every seed."""
    tasks = list(dict.fromkeys(key[0] for key in found))
    figure.set_size_inches(8, 3.5)
    for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        for place, wire in enumerate(list(WIRES)[1:]):
            points = [
                100 * (float(row["accuracy"]) - float(found[task, REFERENCE, seed]["accuracy"]))
                for (name, way, seed), row in found.items()
                if (name, way) == (task, wire) and (task, REFERENCE, seed) in found
            ]
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
        name = tasks[task].images
        images = loaded.get(name) or loaded.setdefault(name, data.load(name))
        figures = train(tasks[task], images, WIRES[wire](), seed)
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
