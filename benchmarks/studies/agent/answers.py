"""The answers of the study of the agent: ratios over paired seeds, their two parts, and whether a bar is met. Pure.

A pair is two runs of one workload, cluster and seed. Its log ratio of times is the mean over the workload's targets, at
smoothed crossings (run_record/evaluations.py), and the sum of two parts:

    log time ratio = log ratio of samples  (what batch sizes and rates cost in learning)
                   + log ratio of seconds per sample  (what they gain on the clock)

If two runs learn the same, the first part is exactly 0. A run that misses a target counts with the time it ran, or with
the longest time that any run of its workload and cluster needs for it, whichever is longer; then there are no parts.

Every workload on every cluster is a stratum and counts as much as the others. Intervals of 95 % are over seeds
(suite/intervals.py): the workloads of a cluster share them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from benchmarks.studies.agent.cells import BEST_STATIC, STATICS, Bar, Question
from benchmarks.studies.rehearsed_cells import Name
from benchmarks.suite.intervals import geometric_mean, smallest_difference
from dynamix_ps.rehearsal.outcome import EvaluationTarget, RehearsalOutcome
from dynamix_ps.run_record.evaluations import TargetReached
from dynamix_ps.sim.contest.comparison import Array, Estimate

LEAST_PAIRS = 20  # for a verdict
MET, MISSED, OPEN = "met", "missed", "not decided"


class Pair(NamedTuple):
    """Log ratios of one pair. `samples` and `clock` are the two parts; NaN where one of the runs misses a target."""

    total: float
    samples: float = math.nan
    clock: float = math.nan
    misses: bool = False  # the contender misses a target


@dataclass(frozen=True, slots=True)
class Answer:
    """To one question, from the pairs there are. Estimates are None with fewer than two pairs in a stratum.

    Attributes:
        ratio: of times.
        samples, clock: its two parts; None too if a run misses a target.
        alike: pairs that learn the same.
        misses: pairs in which the contender misses a target.
        shown: the smallest relative difference that so many pairs with their scatter show (suite/intervals.py).
    """

    question: Question
    pairs: int
    ratio: Estimate | None
    samples: Estimate | None
    clock: Estimate | None
    alike: int
    misses: int
    shown: float

    @property
    def verdict(self) -> str:
        """Empty where nothing is asked for."""
        if self.question.bar is None:
            return ""
        return verdict(self.question.bar, self.ratio, self.pairs)


def verdict(bar: Bar, ratio: Estimate | None, pairs: int) -> str:
    """Whether a bar is met. No verdict on fewer pairs than LEAST_PAIRS."""
    if ratio is None or pairs < LEAST_PAIRS:
        return OPEN
    if ratio.low > bar.limit:
        return MISSED
    met = ratio.value <= bar.limit and ratio.high < 1 if bar.clearly else ratio.high <= bar.limit
    return MET if met else OPEN


class Runs:
    """All runs that have ended, by their names."""

    def __init__(
        self,
        outcomes: Mapping[Name, RehearsalOutcome],
        targets: Mapping[str, Sequence[EvaluationTarget]],
        statics: Sequence[str] = tuple(STATICS),
        further: Sequence[str] = (),
    ) -> None:
        """
        Args:
            targets: of every workload.
            statics: fixed sizes that are tried on every cluster; one of them is the best.
            further: other ones, which count on a cluster where they have as many seeds.
        """
        self._outcomes, self._targets, self._statics, self._further = outcomes, targets, statics, further
        self._reached = {name: self._arrivals(name) for name in outcomes}
        self._longest_s: dict[tuple[str, str], list[float]] = {}
        for name, reached in self._reached.items():
            before = self._longest_s.get(name[:2], [0.0] * len(reached))
            longest = [max(a, b.time_s if b else 0.0) for a, b in zip(before, reached, strict=True)]
            self._longest_s[name[:2]] = longest

    def answer(self, question: Question, workloads: Sequence[str]) -> Answer:
        """From the pairs of these workloads on the question's clusters."""
        pairs = [
            found
            for workload in workloads
            for scenario in question.scenarios
            if (found := self.pairs(question.contender, question.reference, workload, scenario))
        ]
        every = [pair for stratum in pairs for pair in stratum.values()]
        split = bool(every) and not any(math.isnan(pair.samples) for pair in every)

        def estimated(part: Callable[[Pair], float], known: bool = True) -> Estimate | None:
            return geometric_mean(_each(pairs, part)) if known else None

        return Answer(
            question=question,
            pairs=len(every),
            ratio=estimated(lambda pair: pair.total),
            samples=estimated(lambda pair: pair.samples, split),
            clock=estimated(lambda pair: pair.clock, split),
            alike=sum(pair.samples == 0 for pair in every),
            misses=sum(pair.misses for pair in every),
            shown=smallest_difference(_each(pairs, lambda pair: pair.total)),
        )

    def best_static(self, workload: str, scenario: str) -> str | None:
        """The fixed size with the smallest mean log time; None: there are none."""
        times = self.fixed_sizes(workload, scenario)
        return min(times, key=lambda name: times[name]) if times else None

    def fixed_sizes(self, workload: str, scenario: str) -> dict[str, float]:
        """Mean log time of every fixed size that counts there, over the seeds that all have; empty: there are none."""
        shared = set.intersection(*(self._seeds(workload, scenario, name) for name in self._statics))
        further = [name for name in self._further if shared <= self._seeds(workload, scenario, name)]

        def mean(contender: str) -> float:
            return float(np.mean([self.log_s(Name(workload, scenario, contender, seed)) for seed in sorted(shared)]))

        return {name: mean(name) for name in (*self._statics, *further)} if shared else {}

    def _seeds(self, workload: str, scenario: str, contender: str) -> set[int]:
        return {name.seed for name in self._outcomes if name[:3] == (workload, scenario, contender)}

    def pairs(self, contender: str, reference: str, workload: str, scenario: str) -> dict[int, Pair]:
        """One for every seed that both have. `reference`: another contender, or BEST_STATIC."""
        other = self.best_static(workload, scenario) if reference == BEST_STATIC else reference
        if other is None:
            return {}
        seeds = sorted(self._seeds(workload, scenario, contender) & self._seeds(workload, scenario, other))
        both = ([Name(workload, scenario, one, seed) for one in (contender, other)] for seed in seeds)
        return {ours.seed: self._of_times(ours, theirs) for ours, theirs in both}

    def _of_times(self, ours: Name, theirs: Name) -> Pair:
        total = float(np.mean(self.log_s(ours) - self.log_s(theirs)))
        mine, other = self._reached[ours], self._reached[theirs]
        misses = not all(mine)
        used, used_by_other = ([one.samples for one in arrivals if one] for arrivals in (mine, other))
        if misses or not all(other):
            return Pair(total, misses=misses)
        samples = float(np.mean(np.log(used) - np.log(used_by_other)))
        return Pair(total, samples, total - samples)

    def log_s(self, name: Name) -> Array:
        """Log seconds that count, one per target."""
        longest_s, ran_s = self._longest_s[name[:2]], self._outcomes[name].train_s
        counted = [
            reached.time_s if reached else max(ran_s, longest)
            for reached, longest in zip(self._reached[name], longest_s, strict=True)
        ]
        return np.log(counted)

    def _arrivals(self, name: Name) -> list[TargetReached | None]:
        return [self._outcomes[name].reached(target) for target in self._targets[name.workload]]


def _each(strata: Sequence[Mapping[int, Pair]], part: Callable[[Pair], float]) -> list[dict[int, float]]:
    return [{seed: part(pair) for seed, pair in stratum.items()} for stratum in strata]


def smoothed(outcome: RehearsalOutcome, metric: str) -> list[float]:
    """The values of the evaluations that have this metric, each the mean of it and its neighbours."""
    values = [one.values[metric] for one in outcome.curve if metric in one.values]
    return [float(np.mean(values[max(place - 1, 0) : place + 2])) for place in range(len(values))]
