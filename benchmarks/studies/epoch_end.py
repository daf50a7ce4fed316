"""How does a last batch of a few samples affect training? One process, real training, no cluster.

    python -m benchmarks.studies.epoch_end

The workload of the proof grid trains with global batches of 192. The epoch ends with a few samples more than a whole
batch. Either they form a separate batch, or the last two batches share all remaining samples, as the sampler does
(worker_hooks/sampler.py). The learning rate of a batch is proportional to the square root of its samples. The study
measures the test loss after the first iterations of the next epoch. Both cases use the same samples; the last samples
are drawn several times.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from benchmarks.studies.growth import FIRST, MOMENTUM, RATE
from benchmarks.studies.study import Study, run_study
from benchmarks.workloads import data, models
from benchmarks.workloads.data_set import DataSet
from worker_hooks.sampler import Cursor, GlobalSampler

BEFORE = 250  # iterations
LEFT = (1, 2, 4, 16, 48, 96)  # samples beyond a whole batch
AFTER = (1, 5, 10, 20)  # iterations of the next epoch
SEEDS = (1, 2, 3)
DRAWS = 4
TESTED = 4000  # test images

Curve = NDArray[np.float64]  # test losses after AFTER iterations
Indices = NDArray[np.int64]


def on_their_own(left: int) -> list[int]:
    """Sizes of the last two batches if the `left` samples beyond a whole batch form a separate batch."""
    return [FIRST, left]


def shared(left: int) -> list[int]:
    """Sizes of the last two batches as the sampler makes them."""
    sampler, cursor, sizes = GlobalSampler(FIRST + left, 0), Cursor(), []
    while cursor.epoch == 0:
        step = sampler.plan_step(cursor, [FIRST])
        sizes.append(step.sizes[0])
        cursor = step.next
    return sizes


WAYS = {"a batch of their own": on_their_own, "shared by the last two": shared}


class Trained:
    """A model in the middle of training, with a state to return to."""

    def __init__(self, images: DataSet, seed: int, iterations: int) -> None:
        torch.manual_seed(seed)
        self._inputs, self._labels = torch.from_numpy(images.train.inputs), torch.from_numpy(images.train.labels)
        self._tests = tuple(torch.from_numpy(part[:TESTED]) for part in (images.test.inputs, images.test.labels))
        self._model = models.make_model("cnn", images.shape, images.classes)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=RATE, momentum=MOMENTUM)
        self._rng = np.random.default_rng(seed)
        for _ in range(iterations):
            self._step(self.draw(FIRST))
        self._saved = copy.deepcopy((self._model.state_dict(), self._optimizer.state_dict()))

    def draw(self, samples: int) -> Indices:
        """Some of the training data, without repetition."""
        return self._rng.choice(len(self._labels), samples, replace=False)

    def end_epoch(self, last: Indices, sizes: Sequence[int], following: Sequence[Indices]) -> Iterator[float]:
        """Restore the state, train `last` in batches of `sizes`, then each of `following`; yields its test loss."""
        model, optimizer = copy.deepcopy(self._saved)
        self._model.load_state_dict(model)
        self._optimizer.load_state_dict(optimizer)
        for batch in np.split(last, np.cumsum(sizes)[:-1]):
            self._step(batch)
        for iteration, batch in enumerate(following, start=1):
            self._step(batch)
            if iteration in AFTER:
                yield self._test_loss()

    def _step(self, indices: Indices) -> None:
        chosen = torch.from_numpy(indices)
        self._optimizer.param_groups[0]["lr"] = RATE * (len(chosen) / FIRST) ** 0.5
        self._optimizer.zero_grad()
        cross_entropy(self._model(self._inputs[chosen]), self._labels[chosen]).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    @torch.no_grad()
    def _test_loss(self) -> float:
        inputs, labels = self._tests
        return float(cross_entropy(self._model(inputs), labels))


def measure(quick: bool) -> Study:
    """Train every number of remaining samples in both ways, with every seed and draw."""
    images = data.load("fashion-mnist", None)
    seeds, draws, before = (SEEDS[:1], 1, 2) if quick else (SEEDS, DRAWS, BEFORE)
    found: dict[tuple[str, int], list[Curve]] = {(way, left): [] for left in LEFT for way in WAYS}
    for seed in seeds:
        trained = Trained(images, seed, before)
        for draw in range(draws):
            last = trained.draw(FIRST + max(LEFT))
            following = [trained.draw(FIRST) for _ in range(max(AFTER))]
            for (way, left), curves in found.items():
                sizes = WAYS[way](left)
                curves.append(np.array(list(trained.end_epoch(last[: sum(sizes)], sizes, following))))
            print(f"seed {seed}, draw {draw + 1} of {draws}", flush=True)
    rows = [
        {"left": left, "way": way, "run": run, "iterations_after": after, "test_loss": f"{loss:.4f}"}
        for (way, left), curves in found.items()
        for run, curve in enumerate(curves)
        for after, loss in zip(AFTER, curve, strict=True)
    ]
    table = [_row(left, {way: np.array(found[way, left]) for way in WAYS}) for left in LEFT]
    return Study(rows, table, lambda figure: _draw(figure, found))


def _row(left: int, losses: Mapping[str, Curve]) -> dict[str, str]:
    row = {"samples beyond a whole batch": str(left)}
    for way, curves in losses.items():
        for after in (AFTER[0], AFTER[-1]):
            column = curves[:, AFTER.index(after)]
            row[f"{way}: test loss after {after}"] = f"{column.mean():.3f}, worst {column.max():.3f}"
    return row


def _draw(figure: Any, found: Mapping[tuple[str, int], Sequence[Curve]]) -> None:
    figure.set_size_inches(8, 4)
    for axes, way in zip(figure.subplots(1, len(WAYS), sharey=True), WAYS, strict=True):
        for left in LEFT:
            axes.plot(AFTER, np.mean(found[way, left], axis=0), "o-", label=f"{left} left")
        axes.set(xlabel="iterations of the next epoch", title=way)
    figure.axes[0].set_ylabel("test loss, mean over seeds and draws")
    figure.axes[0].legend(fontsize="small")


if __name__ == "__main__":
    run_study("epoch_end", __doc__, measure, simulated=False)
