"""The critical batch size of a small language model, measured by branching, beside our gradient noise scale.

    python -m benchmarks.studies.language_models.critical_batch [--quick]

Branching (arXiv 2505.23971): from one point of a training, copies go on with k times the batch and sqrt(k) times the
learning rate of Adam over the same samples. The critical batch size there is the largest batch whose loss is at most
TOLERANCE above that of k = 1. The noise scale is what our policies see: V / S over the samples before the point, from
gradients of eight equal workers (dynamix_ps/metrics/noise.py). Real gradients in one process; no cluster, no clock.

Beginnings, window and batch are chosen by us. The method is made for windows of billions of tokens; ours have 2^18.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.studies.study import Study, run_study
from benchmarks.workloads import data, models, objective
from benchmarks.workloads.text import CONTEXT
from benchmarks.workloads.torch_samples import SampleSet
from dynamix_ps.metrics.noise import SmoothedNoise, estimate

BATCH = 16  # sequences of the training that branches leave
LR = 0.002  # for BATCH: 0.004 for 64 by the square root
FACTORS = (1, 2, 4, 8, 16, 32)  # on BATCH
POINTS = (2048, 6144, 14336)  # sequences before a branching
WINDOW = 4096  # sequences of a branch
TOLERANCE = 0.01  # nats per byte
SEEDS = (0, 1, 2)
WORKERS, EVERY = 8, 4  # of the noise estimate: parts of a batch; iterations from one to the next
TEST_SAMPLES = 400


@dataclass(frozen=True, slots=True)
class Branching:
    """What was found at one point: losses of the branches by factor, and the noise scale in sequences."""

    seed: int
    point: int
    losses: Mapping[int, float]
    noise_scale: float

    @property
    def critical(self) -> int:
        """In sequences."""
        return BATCH * largest_within(self.losses)


def largest_within(losses: Mapping[int, float], tolerance: float = TOLERANCE) -> int:
    """The largest factor up to which no loss is more than the tolerance above that of factor 1."""
    best = 1
    for factor in sorted(losses):
        if not losses[factor] <= losses[1] + tolerance:  # a loss that is not finite is above
            break
        best = factor
    return best


class Training:
    """A model with its optimizer, in one process."""

    def __init__(self, samples: SampleSet, shape: tuple[int, ...], classes: int, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = models.make_model("gpt-small", shape, classes)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LR)
        self.noise = SmoothedNoise()
        self._samples = samples
        self._order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed))

    def branch(self, factor: int) -> Training:
        """A copy that goes on with a batch so many times as large."""
        other = copy.copy(self)
        other.model = copy.deepcopy(self.model)
        other.optimizer = torch.optim.AdamW(other.model.parameters(), lr=LR)
        other.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
        for group in other.optimizer.param_groups:
            group["lr"] = LR * math.sqrt(factor)
        return other

    def train(self, begin: int, end: int, batch: int, watch: bool = False) -> None:
        """Take the samples at these places of the order. `watch`: estimate the noise on the way."""
        for number, first in enumerate(range(begin, end, batch)):
            chosen = self._order[first : min(first + batch, end)]
            inputs, targets = self._samples[chosen]
            if watch and number % EVERY == 0:
                self._estimate(inputs, targets)
            self._gradients(inputs, targets)
            self.optimizer.step()

    def test_loss(self, test: SampleSet) -> float:
        """In nats per byte."""
        with torch.no_grad():
            inputs, targets = test[:]
            return float(objective.mean_loss(self.model(inputs), targets))

    def _gradients(self, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        """Compute them, and return the square of their norm."""
        self.optimizer.zero_grad()
        objective.mean_loss(self.model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        return sum(float(one.grad.square().sum()) for one in self.model.parameters() if one.grad is not None)

    def _estimate(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        parts = list(zip(inputs.chunk(WORKERS), targets.chunk(WORKERS), strict=True))
        squares = [self._gradients(*part) for part in parts]
        whole = self._gradients(inputs, targets)
        self.noise.update(estimate([len(part) for part, _ in parts], squares, whole), whole)


def branchings(seed: int, points: Sequence[int], window: int) -> Iterator[Branching]:
    """At every point of one training."""
    found = data.load(data.TEXT, None)
    samples, test = SampleSet(found.train), SampleSet(found.test.first(TEST_SAMPLES))
    training = Training(samples, found.shape, found.classes, seed)
    for before, point in zip((0, *points), points, strict=False):
        training.train(before, point, BATCH, watch=True)
        losses = {}
        for factor in FACTORS:
            branch = training.branch(factor)
            branch.train(point, point + window, BATCH * factor)
            losses[factor] = branch.test_loss(test)
        yield Branching(seed, point, losses, training.noise.value.scale)


def measure(is_quick: bool) -> Study:
    """The study; quick: one seed, one point and a window of two steps of the largest batch."""
    seeds, points, window = ((0,), POINTS[:1], 1024) if is_quick else (SEEDS, POINTS, WINDOW)
    found = [one for seed in seeds for one in branchings(seed, points, window)]
    return Study([_row(one) for one in found], table_of(found), lambda figure: draw_losses(figure, found))


def _row(one: Branching) -> dict[str, Any]:
    losses = {f"loss_x{factor}": f"{loss:.4f}" for factor, loss in one.losses.items()}
    return {"seed": one.seed, "sequences": one.point, "noise_scale": f"{one.noise_scale:.1f}"} | losses


def table_of(found: Sequence[Branching]) -> list[dict[str, str]]:
    """One row per point: medians over seeds, in tokens."""
    rows = []
    for point in sorted({one.point for one in found}):
        here = [one for one in found if one.point == point]
        critical: list[float] = [CONTEXT * one.critical for one in here]
        noise = [CONTEXT * one.noise_scale for one in here]
        rows.append(
            {
                "tokens before": f"{CONTEXT * point:,}",
                "seeds": str(len(here)),
                "critical batch by branching": _range(critical),
                "noise scale": _range(noise),
            }
            | {
                f"x{factor}": f"{statistics.mean(one.losses[factor] - one.losses[1] for one in here):+.3f}"
                for factor in FACTORS[1:]
            }
        )
    return rows


def _range(tokens: Sequence[float]) -> str:
    return f"{statistics.median(tokens):,.0f} ({min(tokens):,.0f} to {max(tokens):,.0f})"


def draw_losses(figure: Any, found: Sequence[Branching]) -> None:
    """Loss above that of the base batch, by batch, a line per point."""
    axes = figure.subplots()
    for point in sorted({one.point for one in found}):
        here = [one for one in found if one.point == point]
        above = [statistics.mean(one.losses[factor] - one.losses[1] for one in here) for factor in FACTORS]
        tokens = [CONTEXT * BATCH * factor for factor in FACTORS]
        (line,) = axes.plot(tokens, above, "o-", label=f"after {CONTEXT * point:,} tokens")
        noise = statistics.median(CONTEXT * one.noise_scale for one in here)
        axes.axvline(noise, color=line.get_color(), linestyle=":")
    axes.axhline(TOLERANCE, color="#777777", linestyle="--")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("tokens of a batch (dotted: noise scale)")
    axes.set_ylabel("test loss above that of the base batch (dashed: tolerance)")
    axes.legend()


if __name__ == "__main__":
    run_study("language_models.critical_batch", __doc__, measure, simulated=False)
