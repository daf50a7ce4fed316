"""Both readings of the paper's reward against static sizes: times and accuracies of paired runs, pooled. Pure.

A pair is a reading and a static size with the same group and seed. Ratios of times, the best static size and what
counts where a target is missed are those of the study of the agent (answers.py). Groups are its strata: each
counts as much as the others.

- Targets: the accuracies that the largest static size has after PARTS of its samples, medians over its runs of the
  workload and rate. It learns least from a sample, so the others arrive too.
- Points: difference of accuracies at the time at which the first of the pair ends, or after all samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.studies.agent.answers import Runs, smoothed
from benchmarks.studies.agent.cells import BEST_STATIC
from benchmarks.studies.agent.paper_mode_cells import STATICS, WORKERS, Group
from benchmarks.studies.rehearsed_cells import Name
from benchmarks.suite.intervals import Stratum, geometric_mean, mean, smallest_difference
from dynamix_ps.rehearsal.outcome import EvaluationTarget, RehearsalOutcome
from dynamix_ps.run_record.evaluations import ACCURACY
from dynamix_ps.sim.contest.comparison import Array, Estimate

PARTS = (0.4, 0.6, 0.8)  # chosen before the runs
REFERENCES = (*STATICS, BEST_STATIC)
LARGEST = max(STATICS, key=lambda name: STATICS[name])
GUESSING = 0.1  # accuracy, of ten classes


@dataclass(frozen=True, slots=True)
class Answer:
    """A reading against a static size. Estimates are None without a pair, and have no width with one pair in a group.

    Attributes:
        time: ratio of times to the targets.
        at_equal_time, after_equal_samples: points of accuracy above the static size.
        misses: pairs in which the reading misses a target.
        shown: the smallest relative difference of times that most studies with so many pairs and their scatter show.
    """

    pairs: int
    time: Estimate | None
    at_equal_time: Estimate | None
    after_equal_samples: Estimate | None
    misses: int
    shown: float


@dataclass(frozen=True, slots=True)
class Summary:
    """The runs of one contender in a group.

    Attributes:
        size: samples of a worker in an iteration, mean.
        time_s: seconds to the targets that count, geometric mean.
        ended_s: seconds of the whole training, mean.
        accuracy: after all samples, mean.
    """

    seeds: int
    size: float
    time_s: float
    misses: int
    ended_s: float
    accuracy: float


class Readings:
    """All runs that have ended, by their names."""

    def __init__(self, outcomes: Mapping[Name, RehearsalOutcome]) -> None:
        self._outcomes = outcomes
        self.targets = targets_of(outcomes)
        judged = {name: one for name, one in outcomes.items() if name.workload in self.targets}
        self._runs = Runs(judged, self.targets, tuple(STATICS))

    def answer(self, reading: str, reference: str, groups: Sequence[Group]) -> Answer:
        """From the pairs of these groups."""
        strata = [
            found for group in groups if (found := self._runs.pairs(reading, reference, group.workload, group.cluster))
        ]
        logs = [{seed: pair.total for seed, pair in pairs.items()} for pairs in strata]
        gained = [points for group in groups if (points := self._points(reading, reference, group))]
        return Answer(
            pairs=sum(map(len, strata)),
            time=geometric_mean(logs) or _alone(logs, math.exp),
            at_equal_time=_pooled([{seed: gain for seed, (gain, _) in points.items()} for points in gained]),
            after_equal_samples=_pooled([{seed: gain for seed, (_, gain) in points.items()} for points in gained]),
            misses=sum(pair.misses for pairs in strata for pair in pairs.values()),
            shown=smallest_difference(logs),
        )

    def best_static(self, group: Group) -> str | None:
        """None: no seed has all static sizes."""
        return self._runs.best_static(group.workload, group.cluster)

    def summary(self, contender: str, group: Group) -> Summary | None:
        """None: there is no run."""
        wanted = (group.workload, group.cluster, contender)
        found = {name: one for name, one in self._outcomes.items() if name[:3] == wanted}
        targets = self.targets.get(group.workload)
        if not found or targets is None:
            return None
        runs = list(found.values())
        return Summary(
            seeds=len(runs),
            size=float(np.mean([one.curve[-1].samples / one.iterations for one in runs if one.curve])) / WORKERS,
            time_s=float(np.exp(np.mean([self._runs.log_s(name) for name in found]))),
            misses=sum(one.reached(target) is None for one in runs for target in targets),
            ended_s=float(np.mean([one.train_s for one in runs])),
            accuracy=float(np.mean([accuracy_at(one) for one in runs])),
        )

    def _points(self, reading: str, reference: str, group: Group) -> dict[int, tuple[float, float]]:
        """Gained at equal time and after equal samples, by seed."""
        static = self.best_static(group) if reference == BEST_STATIC else reference
        return dict(self._gains(reading, static, group)) if static else {}

    def _gains(self, reading: str, static: str, group: Group) -> Iterator[tuple[int, tuple[float, float]]]:
        for name, ours in self._outcomes.items():
            theirs = self._outcomes.get(name._replace(contender=static))
            if name[:3] == (group.workload, group.cluster, reading) and theirs is not None:
                until_s = min(ours.train_s, theirs.train_s)
                at_equal_time = 100 * (accuracy_at(ours, until_s) - accuracy_at(theirs, until_s))
                yield name.seed, (at_equal_time, 100 * (accuracy_at(ours) - accuracy_at(theirs)))


def _pooled(strata: Sequence[Stratum]) -> Estimate | None:
    return mean(strata) or _alone(strata, float)


def _alone(strata: Sequence[Stratum], unit: Callable[[float], float]) -> Estimate | None:
    """The mean of the groups' means without an interval."""
    if not strata:
        return None
    value = unit(float(np.mean([np.mean(list(values.values())) for values in strata])))
    return Estimate(value, value, value)


def targets_of(outcomes: Mapping[Name, RehearsalOutcome]) -> dict[str, tuple[EvaluationTarget, ...]]:
    """Of every workload of which the largest static size has a run."""
    runs: dict[str, list[RehearsalOutcome]] = {}
    for name, one in outcomes.items():
        if name.contender == LARGEST and one.curve:
            runs.setdefault(name.workload, []).append(one)
    return {
        workload: tuple(EvaluationTarget(ACCURACY, value, higher_is_better=True) for value in _passed(found).tolist())
        for workload, found in runs.items()
    }


def _passed(runs: Sequence[RehearsalOutcome]) -> Array:
    """Accuracies after PARTS of the samples, medians."""
    each = []
    for one in runs:
        samples = [point.samples for point in one.curve]
        each.append(np.interp(np.array(PARTS) * samples[-1], samples, smoothed(one, ACCURACY)))
    return np.asarray(np.median(each, axis=0))


def accuracy_at(outcome: RehearsalOutcome, time_s: float = np.inf) -> float:
    """At this time, a line between evaluations; GUESSING once the loss is infinite, or where there is no evaluation."""
    if not outcome.curve or (outcome.diverged and outcome.train_s <= time_s):
        return GUESSING
    return float(np.interp(time_s, [one.time_s for one in outcome.curve], smoothed(outcome, ACCURACY)))
