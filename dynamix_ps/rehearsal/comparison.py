"""Policies against a reference by their time to a target, over paired seeds. Pure.

Runs of one seed have the same first weights and the same order of samples, so they share the luck of the learning
curve: only their ratio is compared, seed by seed. The ratio of times is the product of two parts, the ratio of samples
(what the batch sizes cost in learning) and the ratio of seconds per sample (what they gain in speed).

A run that does not reach the target counts with its time at the end, or with the longest time of any run that reaches
it, whichever is longer: not arriving never looks better than arriving.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dynamix_ps.errors import UsageError
from dynamix_ps.rehearsal.outcome import EvaluationTarget, RehearsalOutcome
from dynamix_ps.rehearsal.power import smallest_difference
from dynamix_ps.rehearsal.study import StudyRun
from dynamix_ps.run_record.evaluations import main_names
from dynamix_ps.sim.contest.comparison import Array, Estimate, estimate

NEARLY = 0.98  # of the way from the first evaluation (chosen by us)
_LEAST_S = 1e-6  # a training may break in its first iteration


@dataclass(frozen=True, slots=True)
class Standing:
    """One policy on one scenario, over the seeds that it shares with the reference.

    Attributes:
        time_s: simulated seconds to the target, geometric mean.
        reached, reference_reached: in how many of the `seeds` the policy and the reference reached it.
        time, samples, seconds_per_sample: ratios to the reference, geometric means with 95 % intervals; of the last two
            None if some run did not reach the target.
        quicker: seeds in which it was quicker than the reference.
        shown: the smallest relative difference of times that so many seeds show (power.py).
    """

    scenario: str
    policy: str
    seeds: int
    reached: int
    reference_reached: int
    time_s: float
    time: Estimate
    samples: Estimate | None
    seconds_per_sample: Estimate | None
    quicker: int
    shown: float


class Comparison:
    """All runs of a study that are over."""

    def __init__(self, outcomes: Mapping[StudyRun, RehearsalOutcome], target: EvaluationTarget, reference: str) -> None:
        self.outcomes, self.target, self.reference = outcomes, target, reference
        self._reached = {run: outcome.reached(target) for run, outcome in outcomes.items()}

    def standings(self, scenario: str, policies: Sequence[str]) -> list[Standing]:
        """Of those policies that share a seed with the reference."""
        shared = {policy: self._shared(scenario, policy) for policy in policies}
        return [self._standing(scenario, policy, seeds) for policy, seeds in shared.items() if seeds]

    def times_s(self, scenario: str, policy: str, seeds: Iterable[int]) -> Array:
        """Seconds that count, one per seed."""
        of_scenario = [run for run in self.outcomes if run.scenario == scenario]
        longest_s = max((reached.time_s for run in of_scenario if (reached := self._reached[run])), default=0.0)
        times = []
        for seed in seeds:
            run = StudyRun(scenario, policy, seed)
            reached = self._reached[run]
            times.append(reached.time_s if reached else max(self.outcomes[run].train_s, longest_s, _LEAST_S))
        return np.array(times)

    def _shared(self, scenario: str, policy: str) -> list[int]:
        seeds = sorted({run.seed for run in self.outcomes})
        both = (self.reference, policy)
        return [seed for seed in seeds if all(StudyRun(scenario, one, seed) in self.outcomes for one in both)]

    def _standing(self, scenario: str, policy: str, seeds: list[int]) -> Standing:
        times_s, of_reference_s = (self.times_s(scenario, one, seeds) for one in (policy, self.reference))
        mine, theirs = (
            [self._reached[StudyRun(scenario, one, seed)] for seed in seeds] for one in (policy, self.reference)
        )
        samples = seconds = None
        if all(mine) and all(theirs):
            used, used_by_reference = (np.array([one.samples for one in ways if one]) for ways in (mine, theirs))
            samples = ratio(used, used_by_reference)
            seconds = ratio(times_s / used, of_reference_s / used_by_reference)
        return Standing(
            scenario=scenario,
            policy=policy,
            seeds=len(seeds),
            reached=sum(one is not None for one in mine),
            reference_reached=sum(one is not None for one in theirs),
            time_s=float(np.exp(np.log(times_s).mean())),
            time=ratio(times_s, of_reference_s),
            samples=samples,
            seconds_per_sample=seconds,
            quicker=int((times_s < of_reference_s).sum()),
            shown=smallest_difference(np.log(times_s / of_reference_s)),
        )


def ratio(ours: Array, theirs: Array) -> Estimate:
    """Geometric mean of ours / theirs over paired seeds, with the interval of a paired bootstrap."""
    logs = np.log(ours / theirs)
    return estimate(lambda drawn: np.exp(drawn.mean(axis=(-2, -1))), logs[None], rng=np.random.default_rng(0))


def choose_target(
    outcomes: Mapping[StudyRun, RehearsalOutcome], name: str | None, value: float | None
) -> EvaluationTarget:
    """The target of a comparison. Without a value it is NEARLY the best one that every run reaches.

    Raises UsageError if the script does not evaluate such a value, or too seldom; if the direction of the value is not
    known; or if the loss of all runs became infinite.
    """
    known = list(outcomes.values())
    names = list(dict.fromkeys(one for outcome in known for point in outcome.curve for one in point.values))
    if not names:
        raise UsageError(
            "the script evaluates nothing, so there is no target to compare by; call run.evaluate() now and then"
        )
    name = name or main_names(names)[0]
    if name not in names:
        raise UsageError(f"--target: the script evaluates {', '.join(names)}, got {name!r}")
    for run, outcome in outcomes.items():
        outcome.check_evaluations(run, name)
    higher = next((one.higher_is_better[name] for one in known if name in one.higher_is_better), None)
    if higher is None:
        raise UsageError(
            f"it is not known whether a higher {name} is better; say so in run.evaluate(): "
            f"higher_is_better={name!r} or lower_is_better={name!r}"
        )
    if value is None:
        if not (finite := [one for one in known if not one.diverged]):
            raise UsageError(
                "the loss of every run became infinite, so no target follows from the runs; lower the learning rate of "
                "the script, or give --target"
            )
        value = _nearly_reached_by_all(finite, name, higher)
    return EvaluationTarget(name, value, higher)


def _nearly_reached_by_all(outcomes: Sequence[RehearsalOutcome], name: str, higher: bool) -> float:
    """On the way from the first evaluation to the best one. The best itself is often on a plateau, where luck decides
    when it is reached."""
    first, best = [], []
    for outcome in outcomes:
        values = [point.values[name] for point in outcome.curve if name in point.values]
        smooth = [float(np.mean(values[max(place - 1, 0) : place + 2])) for place in range(len(values))]
        first.append(values[0])
        best.append(max(smooth) if higher else min(smooth))
    begin = float(np.median(first))
    return begin + NEARLY * ((min(best) if higher else max(best)) - begin)


def seeds_that_change_nothing(outcomes: Mapping[StudyRun, RehearsalOutcome]) -> tuple[StudyRun, StudyRun] | None:
    """Two runs that differ in nothing but their seeds and came to the same values; None: there are none."""
    seen: dict[object, StudyRun] = {}
    for run, outcome in outcomes.items():
        if len(outcome.curve) < 2:
            continue
        key = (run.scenario, run.policy, tuple(tuple(point.values.items()) for point in outcome.curve))
        if key in seen:
            return seen[key], run
        seen[key] = run
    return None
