"""What a run folder tells of one rehearsed run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from dynamix_ps.errors import DIVERGED, UsageError
from dynamix_ps.run_record.evaluations import TargetReached, first_reached, shown
from dynamix_ps.run_record.json_lines import UNUSABLE, JsonLinesTail, Line
from dynamix_ps.run_record.run_folder import RunFolder
from dynamix_ps.run_record.values import number

LEAST_EVALUATIONS = 3  # of a run: fewer are no curve, on which a value is reached at some moment (chosen by us)


class Evaluated(NamedTuple):
    """One evaluation. Seconds are simulated, without evaluations."""

    time_s: float
    samples: int
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RehearsalOutcome:
    """One run that is over. `diverged`: its loss became infinite."""

    train_s: float  # simulated
    iterations: int
    plans: int  # that were applied
    passes: int  # over the data at the last evaluation, the one at hand too
    diverged: bool
    curve: tuple[Evaluated, ...]
    higher_is_better: Mapping[str, bool]  # as far as it is known

    def check_evaluations(self, run: object, name: str | None = None) -> None:
        """Raises UsageError if a run has too few evaluations, of the value `name` if given, to be compared.

        A run whose loss became infinite has as many as it lived to see.
        """
        count = sum(name is None or name in point.values for point in self.curve)
        if count < LEAST_EVALUATIONS and not self.diverged:
            raise UsageError(
                f"the rehearsed run of {run} evaluated {name or 'the model'} {count} time{'s' * (count != 1)}, "
                f"expected {LEAST_EVALUATIONS} or more in every run, without which nobody can say which policy is "
                "faster; train for more epochs or call run.evaluate() more often, such as by run.every_samples(), and "
                "rehearse into a new folder"
            )

    def reached(self, target: EvaluationTarget) -> TargetReached | None:
        """When the value was first as good as this; None: never. See `first_reached`."""
        points = [
            (one.time_s, float(one.samples), one.values[target.name]) for one in self.curve if target.name in one.values
        ]
        return first_reached(points, target.value, target.higher_is_better)


class EvaluationTarget(NamedTuple):
    """A value of the evaluations, and how good it is to be."""

    name: str
    value: float
    higher_is_better: bool

    def __str__(self) -> str:
        return f"{self.name} {shown(self.name, self.value)}"


def read_outcome(folder: RunFolder) -> RehearsalOutcome | None:
    """The outcome of a run; None if it has not ended, or has failed in another way than by an infinite loss.

    Lines that lack what their kind has are left out.
    """
    reading = _Reading()
    for line in JsonLinesTail(folder.worker_file(0)).read():
        with suppress(*UNUSABLE):
            reading.add(line)
    return reading.outcome()


class _Reading:
    """What the lines of a run have told so far."""

    def __init__(self) -> None:
        self._began_s = self._train_s = 0.0
        self._iterations = self._plans = self._passes = 0
        self._ended = self._diverged = False
        self._curve: list[Evaluated] = []
        self._directions: dict[str, bool] = {}

    def add(self, line: Line) -> None:
        """Raises what `UNUSABLE` names if the line lacks what its kind has."""
        kind = line["kind"]
        if kind == "started":
            self._began_s = line["time_s"]
        elif kind == "evaluation":
            evaluated, passes, directions = _evaluated(line), line["epoch"] + 1, line["higher_is_better"]
            self._curve.append(evaluated)
            self._passes = passes
            self._directions |= directions
        elif kind == "plan_applied":
            self._plans += 1
        elif kind == "finished":
            self._iterations, self._train_s = line["iterations"], number(line["train_s"])
            self._ended = True
        elif kind == "failed":
            self._iterations, self._train_s = line["iteration"], line["time_s"] - self._began_s
            self._ended = self._diverged = DIVERGED in line["error"]

    def outcome(self) -> RehearsalOutcome | None:
        if not self._ended:
            return None
        curve = tuple(self._curve)
        return RehearsalOutcome(
            self._train_s, self._iterations, self._plans, self._passes, self._diverged, curve, self._directions
        )


def _evaluated(line: Line) -> Evaluated:
    values = {name: number(value) for name, value in line["values"].items()}
    return Evaluated(line["trained_s"], line["trained_samples"], values)
