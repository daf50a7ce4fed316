"""When should the global batch grow? One process, real training, no cluster.

    python -m benchmarks.studies.growth

The workload of the proof grid is a two-layer CNN on Fashion-MNIST with a learning rate of 0.045 for 192 samples,
proportional to the square root of B. The global batch grows as the agent lets it grow with H-level 10, earlier or
later, and the learning rate follows at once or with a warm-up. With H-level 10 an iteration takes equally long for any
B, because the slowest worker is at its smallest size; so iterations measure time. The study reports iterations and
samples until the test accuracy is reached, as the mean of three evaluations in a row, 8,000 samples apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from benchmarks.studies.study import Study, run_study
from benchmarks.workloads import data, models
from benchmarks.workloads.data_set import DataSet
from worker_hooks.sampler import Cursor, GlobalSampler

FIRST, RATE, MOMENTUM = 192, 0.045, 0.9
EVALUATE_EVERY = 8000  # samples
ACCURACIES = (0.80, 0.85, 0.87)
SEEDS = (1, 2)
SAMPLES = 136_000


@dataclass(frozen=True, slots=True)
class Growth:
    """Global batch by first iteration, and the number of iterations in which the learning rate follows (0: at once)."""

    batches: Mapping[int, int]
    warm_up: int = 0

    def batch_at(self, iteration: int) -> int:
        return self.batches[max(begin for begin in self.batches if begin <= iteration)]


GROWTHS = {
    "192, never more": Growth({0: FIRST}),
    "384 from 6, 646 from 20": Growth({0: FIRST, 6: 384, 20: 646}),
    "384 from 6, 646 from 20, rate warmed up": Growth({0: FIRST, 6: 384, 20: 646}, warm_up=50),
    "384 from 26, 646 from 39": Growth({0: FIRST, 26: 384, 39: 646}),
    "384 from 60, 646 from 90": Growth({0: FIRST, 60: 384, 90: 646}),
    "384 from 60, 646 from 90, rate warmed up": Growth({0: FIRST, 60: 384, 90: 646}, warm_up=50),
}


@dataclass(frozen=True, slots=True)
class Point:
    """One evaluation."""

    iteration: int
    samples: int
    accuracy: float


def train(growth: Growth, images: DataSet, seed: int, samples: int) -> Iterator[Point]:
    """Train `samples` samples; yields the evaluations on the way."""
    torch.manual_seed(seed)
    inputs, labels = torch.from_numpy(images.train.inputs), torch.from_numpy(images.train.labels)
    model = models.make_model("cnn", images.shape, images.classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    sampler, cursor = GlobalSampler(len(labels), seed), Cursor()
    iteration, trained, factor = 0, 0, 1.0
    while trained < samples:
        batch = growth.batch_at(iteration)
        step = sampler.plan_step(cursor, [batch])
        chosen, cursor = torch.from_numpy(sampler.indices(step, 0)), step.next
        wanted = (batch / FIRST) ** 0.5
        factor += (wanted - factor) / max(growth.warm_up, 1)
        optimizer.param_groups[0]["lr"] = RATE * factor * (len(chosen) / batch) ** 0.5
        optimizer.zero_grad()
        cross_entropy(model(inputs[chosen]), labels[chosen]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        before, iteration, trained = trained, iteration + 1, trained + len(chosen)
        if before // EVALUATE_EVERY < trained // EVALUATE_EVERY:
            yield Point(iteration, trained, accuracy(model, images))


@torch.no_grad()
def accuracy(model: torch.nn.Module, images: DataSet) -> float:
    """Accuracy on all test data."""
    inputs, labels = torch.from_numpy(images.test.inputs), torch.from_numpy(images.test.labels)
    parts = zip(torch.split(inputs, 1000), torch.split(labels, 1000), strict=True)
    return sum(int((model(x).argmax(1) == y).sum()) for x, y in parts) / len(labels)


def arrival(curve: Sequence[Point], wanted: float) -> Point | None:
    """The first evaluation whose mean with its neighbours reaches this accuracy; None if there is none."""
    for index, point in enumerate(curve):
        around = curve[max(index - 1, 0) : index + 2]
        if np.mean([one.accuracy for one in around]) >= wanted:
            return point
    return None


def measure(quick: bool) -> Study:
    """Train every schedule with every seed."""
    images = data.load("fashion-mnist", None)
    seeds, samples = (SEEDS[:1], 2 * EVALUATE_EVERY) if quick else (SEEDS, SAMPLES)
    curves = {}
    for name, growth in GROWTHS.items():
        for seed in seeds:
            curves[name, seed] = list(train(growth, images, seed, samples))
            print(f"{name}, seed {seed}: {curves[name, seed][-1].accuracy:.3f}", flush=True)
    rows = [
        {"growth": name, "warm_up": GROWTHS[name].warm_up, "seed": seed}
        | {"iteration": point.iteration, "samples": point.samples, "accuracy": f"{point.accuracy:.4f}"}
        for (name, seed), curve in curves.items()
        for point in curve
    ]
    table = [_row(name, [curves[name, seed] for seed in seeds]) for name in GROWTHS]
    return Study(rows, table, lambda figure: _draw(figure, {name: curves[name, seeds[0]] for name in GROWTHS}))


def _row(name: str, curves: Sequence[Sequence[Point]]) -> dict[str, str]:
    row = {"global batch, from which iteration on": name}
    for wanted in ACCURACIES:
        found = [arrival(curve, wanted) for curve in curves]
        there = [point for point in found if point is not None]
        late = f", {len(found) - len(there)} of {len(found)} never" if len(there) < len(found) else ""
        row[f"iterations / samples to {100 * wanted:.0f} %"] = (
            f"{np.mean([p.iteration for p in there]):.0f} / {np.mean([p.samples for p in there]):,.0f}{late}"
            if there
            else "never"
        )
    return row


def _draw(figure: Any, curves: Mapping[str, Sequence[Point]]) -> None:
    figure.set_size_inches(7, 4)
    axes = figure.subplots()
    for name, curve in curves.items():
        style = "--" if GROWTHS[name].warm_up else "-"
        points = [(point.iteration, 100 * point.accuracy) for point in curve]
        axes.plot(*np.array(points).T, style, label=name)
    axes.set(xlabel="iterations", ylabel="test accuracy (%)", ylim=(70, 90), title="Growing the global batch, seed 1")
    axes.legend(fontsize="small")


if __name__ == "__main__":
    run_study("growth", __doc__, measure, simulated=False)
