"""Compares several policies on several scenarios: which reaches the target first, and how certain that is.

A run that does not reach the target within its scenario's `max_windows` counts with its time at the end, or with the
longest time that any policy needed in that scenario, whichever is longer. A failed run therefore never counts as faster
than a successful one. Every result includes the number of failed runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dynamix_ps.config.schema import PolicySection
from dynamix_ps.sim.contest.comparison import Array, Estimate, estimate, interquartile_mean, probability_of_improvement
from dynamix_ps.sim.contest.evaluate import Cell, SimulatedOutcome, evaluate
from dynamix_ps.sim.parallel import parallel
from dynamix_ps.sim.scenario.load import Scenario

TUNED = "tuned-static"
STEPS_PER_DOUBLING = 2  # how many sizes are tried for TUNED


@dataclass(frozen=True, slots=True)
class Contest:
    """All outcomes by (policy, scenario), and by scenario the best size for all workers, if sizes were tried."""

    scenarios: tuple[str, ...]
    policies: tuple[str, ...]
    outcomes: Mapping[tuple[str, str], SimulatedOutcome]
    tuned_sizes: Mapping[str, int]

    def counted_s(self, policy: str, scenario: str) -> Array:
        """Times to compare by, one per seed; the module's docstring has the rule for failed runs."""
        arrived = [self.outcomes[name, scenario] for name in self.policies]
        longest_s = max((one.time_s[one.reached].max() for one in arrived if one.reached.any()), default=0.0)
        outcome = self.outcomes[policy, scenario]
        return np.where(outcome.reached, outcome.time_s, np.maximum(outcome.time_s, longest_s))

    def best_rival(self, rivals: Sequence[str], scenario: str) -> str:
        """The rival with the smallest interquartile mean."""
        return min(rivals, key=lambda name: float(interquartile_mean(self.counted_s(name, scenario)[None])))

    def against_best(self, policy: str, rivals: Sequence[str], scenarios: Sequence[str]) -> tuple[Array, Array]:
        """Times of the policy, and of the best rival in each scenario; both (scenarios, seeds)."""
        ours = np.stack([self.counted_s(policy, name) for name in scenarios])
        return ours, np.stack([self.counted_s(self.best_rival(rivals, name), name) for name in scenarios])

    def against_every_seed(self, policy: str, rivals: Sequence[str], scenarios: Sequence[str]) -> tuple[Array, Array]:
        """Like `against_best`, with the best rival of each seed, which nobody can choose in advance."""
        ours = np.stack([self.counted_s(policy, name) for name in scenarios])
        theirs = [[self.counted_s(rival, name) for rival in rivals] for name in scenarios]
        return ours, np.array(theirs).min(axis=1)

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row per run, for a CSV file."""
        for (policy, scenario), one in self.outcomes.items():
            for seed in range(len(one.time_s)):
                yield {
                    "scenario": scenario,
                    "policy": policy,
                    "seed": seed,
                    "reached": bool(one.reached[seed]),
                    "time_s": float(one.time_s[seed]),
                    "windows": int(one.windows[seed]),
                    "accuracy": float(one.accuracy[seed]),
                    "samples_per_s": float(one.samples_per_s[seed]),
                    "fallbacks": int(one.fallbacks[seed]),
                }


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """One policy against a rival, over some scenarios."""

    relative_time: Estimate
    improvement: Estimate  # probability that a run is shorter


def compare(ours: Array, theirs: Array, rng: np.random.Generator) -> PairedComparison:
    """Compare times of shape (scenarios, seeds); both have the same seeds in the same order."""
    ratios = estimate(interquartile_mean, ours / theirs, rng=rng)
    return PairedComparison(ratios, estimate(probability_of_improvement, ours, theirs, rng=rng))


def compete(
    scenarios: Sequence[Scenario],
    policies: Mapping[str, PolicySection | None],
    *,
    seeds: int,
    seed: int,
    processes: int | None = None,
    on_done: Callable[[int, int], None] = lambda done, total: None,
) -> Contest:
    """Run every policy on every scenario. In each scenario the best of `uniform_sizes` takes the place of TUNED.

    Args:
        policies: by name; None is the oracle (oracle.py).
        on_done: gets the number of finished cells and of all cells.

    Raises:
        PolicyError: a policy's file is unusable.
    """
    entries = [
        (name, scenario, size)
        for scenario in scenarios
        for name in policies
        for size in (uniform_sizes(scenario) if name == TUNED else (None,))
    ]
    cells = [
        Cell(where, _uniform(where, size) if size else policies[name], seeds, seed) for name, where, size in entries
    ]
    outcomes: dict[tuple[str, str], SimulatedOutcome] = {}
    tried: dict[str, dict[int, SimulatedOutcome]] = {}
    for done, (index, outcome) in enumerate(parallel(evaluate, cells, processes), 1):
        name, scenario, size = entries[index]
        if size is None:
            outcomes[name, scenario.name] = outcome
        else:
            tried.setdefault(scenario.name, {})[size] = outcome
        on_done(done, len(entries))
    tuned_sizes = {where: best_size(found) for where, found in tried.items()}
    outcomes |= {(TUNED, where): tried[where][size] for where, size in tuned_sizes.items()}
    return Contest(tuple(one.name for one in scenarios), tuple(policies), outcomes, tuned_sizes)


def _uniform(scenario: Scenario, size: int) -> PolicySection:
    return PolicySection(name="static", sizes=(size,) * scenario.n_workers)


def uniform_sizes(scenario: Scenario) -> tuple[int, ...]:
    """The sizes that are tried for TUNED: a geometric series over the range of the bounds."""
    low, high = max(scenario.batch.min, 1), scenario.batch.max
    count = int(STEPS_PER_DOUBLING * np.log2(high / low)) + 1
    return tuple(round(low * 2 ** (step / STEPS_PER_DOUBLING)) for step in range(count))


def best_size(outcomes: Mapping[int, SimulatedOutcome]) -> int:
    """The size that reaches the target most often; of several, the one with the smallest mean time."""
    return min(outcomes, key=lambda size: (int((~outcomes[size].reached).sum()), float(outcomes[size].time_s.mean())))
