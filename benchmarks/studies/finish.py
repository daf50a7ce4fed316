"""Should the global batch change towards the end of training? One process, real training, no cluster.

    python -m benchmarks.studies.finish

The workload of the proof grid trains for its two epochs, with a learning rate proportional to the square root of B and
no schedule. The last quarter or eighth of the samples uses larger or smaller global batches. A larger batch averages
out more noise than its longer step adds, like a falling learning rate (Smith et al., arXiv 1711.00489); the price is
fewer steps. The study reports the final accuracy and the mean of the last three evaluations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.studies.growth import FIRST, Growth, train
from benchmarks.studies.study import Study, run_study
from benchmarks.workloads import data

EPOCHS = 2
SEEDS = (1, 2, 3, 4, 5, 6)
GROWS_AT = 10_000  # samples; the agent grows B as early as this
FINISHES = {  # {thousands of samples after which it starts: global batch}
    "192": {0: FIRST},
    "192, 450 from 90": {0: FIRST, 90: 450},
    "256": {0: FIRST, 10: 256},
    "256, 512 from 90": {0: FIRST, 10: 256, 90: 512},
    "320": {0: FIRST, 10: 320},
    "320, 192 from 90": {0: FIRST, 10: 320, 90: 192},
    "320, 640 from 90": {0: FIRST, 10: 320, 90: 640},
    "320, 640 from 105": {0: FIRST, 10: 320, 105: 640},
}

Accuracies = Mapping[str, Sequence[Sequence[float]]]  # of the last three evaluations, per finish and seed


def by_iteration(by_thousands: Mapping[int, int]) -> Growth:
    """The same schedule in iterations."""
    batches: dict[int, int] = {}
    iteration, began, batch = 0, 0, FIRST
    for begin, changed in by_thousands.items():
        iteration += round(1000 * (begin - began) / batch)
        batches[iteration] = changed
        began, batch = begin, changed
    return Growth(batches)


def measure(quick: bool) -> Study:
    """Train every finish with every seed."""
    images = data.load("fashion-mnist", None)
    samples = EPOCHS * len(images.train.labels)
    seeds, samples = (SEEDS[:1], samples // 6) if quick else (SEEDS, samples)
    found: dict[str, list[list[float]]] = {name: [] for name in FINISHES}
    for seed in seeds:
        for name, batches in FINISHES.items():
            curve = list(train(by_iteration(batches), images, seed, samples))
            found[name].append([100 * point.accuracy for point in curve[-3:]])
            print(f"{name}, seed {seed}: {found[name][-1][-1]:.2f} %", flush=True)
    rows = [
        {"finish": name, "seed": seed, "evaluation": index - 3, "accuracy": f"{accuracy:.2f}"}
        for name, accuracies in found.items()
        for seed, last in zip(seeds, accuracies, strict=True)
        for index, accuracy in enumerate(last)
    ]
    return Study(rows, [_row(name, accuracies) for name, accuracies in found.items()], lambda to: _draw(to, found))


def _row(name: str, accuracies: Sequence[Sequence[float]]) -> dict[str, str]:
    last = np.array([of_seed[-1] for of_seed in accuracies])
    return {
        "global batch, from which thousand samples on": name,
        "final accuracy (%), mean and standard deviation": f"{last.mean():.2f}, {last.std():.2f}",
        "mean of the last three evaluations (%)": f"{np.mean(accuracies):.2f}",
    }


def _draw(figure: Any, found: Accuracies) -> None:
    figure.set_size_inches(7, 4)
    axes = figure.subplots()
    for row, accuracies in enumerate(reversed(list(found.values()))):
        last = [of_seed[-1] for of_seed in accuracies]
        axes.plot(last, [row] * len(last), "o", color="tab:blue", alpha=0.5)
        axes.plot(np.mean(last), row, "|", color="black", markersize=18)
    axes.set_yticks(range(len(found)), reversed(list(found)))
    axes.set(xlabel="final accuracy (%), every seed and the mean", ylabel="global batch, from thousands of samples on")


if __name__ == "__main__":
    run_study("finish", __doc__, measure, simulated=False)
