"""Evaluations of a model: named values, each a mean over a data set, and in which direction each is better.

Accuracy is only what the script calls `accuracy`, of the weights themselves: values of averaged weights have names of
their own, `averaged_accuracy` and so on. A value whose direction is not known is shown, but never ranked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from dynamix_ps.run_record.values import number

if TYPE_CHECKING:
    from dynamix_ps.run_record.json_lines import Line

ACCURACY = "accuracy"
AVERAGED = "averaged_"  # begins the names of values of averaged weights
_HIGHER = frozenset({ACCURACY, "acc", "precision", "recall", "f1", "auc", "auroc", "iou", "dice", "r2"})
_LOWER = frozenset({"loss", "error", "mae", "mse", "rmse", "mape", "nll", "perplexity", "ppl", "bpb"})
MAIN_NAMES = 3
_WORD = re.compile(r"[a-z0-9]+")
_OF_OLD_RUNS = (ACCURACY, "loss")  # stood in the line itself


def higher_is_better(name: str) -> bool | None:
    """The direction of a value by its name, of which the last word counts (`test_loss`); None: not known."""
    word = _last_word(name)
    return True if word in _HIGHER else False if word in _LOWER else None


def _last_word(name: str) -> str:
    return next(reversed(_WORD.findall(name.lower())), "")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The values of one evaluation; `elapsed_s` counts from the start of training on rank 0."""

    iteration: int
    epoch: int
    elapsed_s: float
    values: Mapping[str, float]  # in the order in which the script names them
    directions: Mapping[str, bool] = field(default_factory=dict)  # by name, true: higher is better; absent: not known

    @property
    def accuracy(self) -> float:
        """NaN if the script named no accuracy."""
        return self.values.get(ACCURACY, math.nan)


def evaluation_of(line: Line, began_s: float) -> Evaluation:
    """The evaluation in a worker's line. Raises KeyError, TypeError or ValueError if the line lacks what it needs."""
    named = line["values"] if "values" in line else {name: line[name] for name in _OF_OLD_RUNS}
    values = {str(name): number(value) for name, value in named.items()}
    directions = line["higher_is_better"] if "values" in line else {ACCURACY: True, "loss": False}
    return Evaluation(line["iteration"], line["epoch"], line["time_s"] - began_s, values, directions)


class TargetReached(NamedTuple):
    """Where a value was first as good as a target."""

    time_s: float
    samples: float


def first_reached(
    points: Sequence[tuple[float, float, float]], target: float, higher_is_better: bool
) -> TargetReached | None:
    """Where the value was first at least as good as `target`, on the line between two evaluations; None: never.

    The value at an evaluation is the mean of it and its neighbours: single ones scatter (accuracies by about half a
    point), and the luckiest would be the one that counts.

    Args:
        points: (seconds, samples, value) of every evaluation.
    """
    before: tuple[float, float, float] | None = None
    for index, (time_s, samples, _) in enumerate(points):
        around = [value for _, _, value in points[max(index - 1, 0) : index + 2]]
        mean = sum(around) / len(around)
        if mean >= target if higher_is_better else mean <= target:
            if before is None or not math.isfinite(before[2]):
                return TargetReached(time_s, samples)
            part = (target - before[2]) / (mean - before[2])
            return TargetReached(before[0] + part * (time_s - before[0]), before[1] + part * (samples - before[1]))
        before = (time_s, samples, mean)
    return None


@dataclass(slots=True)
class MetricCurve:
    """One named value over a run."""

    name: str
    higher_is_better: bool | None
    elapsed_s: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    @property
    def last(self) -> float:
        return self.values[-1]

    @property
    def best(self) -> float:
        """NaN if the direction is not known, or no value is."""
        known = [value for value in self.values if not math.isnan(value)]
        if self.higher_is_better is None or not known:
            return math.nan
        return max(known) if self.higher_is_better else min(known)

    @property
    def title(self) -> str:
        return titled(self.name, self.higher_is_better)


def titled(name: str, higher: bool | None) -> str:
    """`mae (lower is better)`; the name alone where the direction is not known, or everybody knows it."""
    if higher is None or name == ACCURACY:
        return name
    return f"{name} ({'higher' if higher else 'lower'} is better)"


def curves(evaluations: Iterable[Evaluation]) -> dict[str, MetricCurve]:
    """The curve of every name, accuracy first, the others in the order in which they were first recorded."""
    found: dict[str, MetricCurve] = {}
    for point in evaluations:
        for name, value in point.values.items():
            curve = found.setdefault(name, MetricCurve(name, point.directions.get(name)))
            curve.elapsed_s.append(point.elapsed_s)
            curve.values.append(value)
    return {name: found[name] for name in _accuracy_first(tuple(found))}


def _accuracy_first(names: Sequence[str]) -> list[str]:
    return sorted(names, key=lambda name: name != ACCURACY)


def main_names(names: Iterable[str]) -> list[str]:
    """Which values to show where there is little room: the accuracy if there is one, otherwise the first few.

    Beside the accuracy, that of averaged weights.
    """
    known = list(names)
    return [name for name in (ACCURACY, AVERAGED + ACCURACY) if name in known] or known[:MAIN_NAMES]


def shown(name: str, value: float | None) -> str:
    """A value for people: an accuracy in percent, others with four significant digits."""
    if value is None or math.isnan(value):
        return "-"
    return f"{100 * value:.2f} %" if _last_word(name) == ACCURACY else f"{value:.4g}"
