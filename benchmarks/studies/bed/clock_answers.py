"""Whether rehearsals come to the clock part of real runs: seconds per sample of contenders, and their ratios. Pure.

The clock part of two contenders is the ratio of their seconds per sample (docs/evaluation.md). Here it is over the same
span of training time for all, which is a whole round of a scenario's schedule, and paired by seed. The first seconds
are left out, in which processes warm up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.suite.intervals import paired_ratio
from benchmarks.suite.results import CellName, CellResult
from dynamix_ps.sim.contest.comparison import Estimate

BAR = 0.05  # by how much the rehearsed clock part may differ from the measured one
FEWEST = 3  # pairs: fewer show no scatter
WITHIN, BEYOND, OPEN = "within", "beyond", "not decided"

Points = Sequence[tuple[float, float]]  # seconds of training, samples of all workers by then


@dataclass(frozen=True, slots=True)
class Span:
    """Seconds of training that count."""

    from_s: float
    until_s: float

    def seconds_per_sample(self, points: Points) -> float | None:
        """Within the span, interpolated between evaluations; None if they end before it does."""
        times_s, samples = np.array([(0.0, 0.0), *points]).T
        if times_s[-1] < self.until_s:
            return None
        first, last = np.interp((self.from_s, self.until_s), times_s, samples)
        return float((self.until_s - self.from_s) / (last - first))

    def steady(self, cell: CellResult) -> CellResult:
        """The cell as if it had begun with its first evaluation in the span, for what is fitted to its times."""
        first, *rest = (point for point in cell.curve if point.time_s >= self.from_s)
        curve = (
            dataclasses.replace(one, time_s=one.time_s - first.time_s, samples=one.samples - first.samples)
            for one in rest
        )
        return dataclasses.replace(cell, curve=tuple(curve))


@dataclass(frozen=True, slots=True)
class Agreement:
    """One contender over the reference in one scenario, over the seeds that all four runs have."""

    scenario: str
    contender: str
    seeds: int
    measured: Estimate
    rehearsed: Estimate
    off: Estimate  # rehearsed over measured

    @property
    def verdict(self) -> str:
        """Whether all of the interval is within the bar, or beyond it. Fewer than FEWEST pairs decide nothing."""
        if self.seeds < FEWEST:
            return OPEN
        if self.off.low >= 1 / (1 + BAR) and self.off.high <= 1 + BAR:
            return WITHIN
        return BEYOND if self.off.low > 1 + BAR or self.off.high < 1 / (1 + BAR) else OPEN


Clocks = Mapping[CellName, float]  # seconds per sample


def agreements(
    measured: Clocks, rehearsed: Clocks, scenarios: Sequence[str], contenders: Sequence[str], reference: str
) -> list[Agreement]:
    """Of those that share a seed with the reference."""
    return [
        agreement
        for scenario in scenarios
        for contender in contenders
        if contender != reference
        and (agreement := _agreement(measured, rehearsed, scenario, contender, reference)) is not None
    ]


def _agreement(measured: Clocks, rehearsed: Clocks, scenario: str, contender: str, reference: str) -> Agreement | None:
    both = measured.keys() & rehearsed.keys()
    ours = sorted(one for one in both if (one.scenario, one.contender) == (scenario, contender))
    pairs = [(one, other) for one in ours if (other := dataclasses.replace(one, contender=reference)) in both]
    if not pairs:
        return None
    real, simulated = (
        np.array([clocks[one] / clocks[other] for one, other in pairs]) for clocks in (measured, rehearsed)
    )
    equal = np.ones(len(pairs))
    return Agreement(
        scenario,
        contender,
        len(pairs),
        paired_ratio(real, equal),
        paired_ratio(simulated, equal),
        paired_ratio(simulated, real),
    )


def table_of(found: Sequence[Agreement]) -> list[dict[str, str]]:
    """One row each."""
    return [
        {
            "scenario": one.scenario,
            "contender": f"`{one.contender}`",
            "seeds": str(one.seeds),
            "measured": _in_words(one.measured),
            "rehearsed": _in_words(one.rehearsed),
            "rehearsed / measured": _in_words(one.off),
            f"within {100 * BAR:g} %": f"**{one.verdict}**",
        }
        for one in found
    ]


def _in_words(one: Estimate) -> str:
    return f"{one.value:.3f} [{one.low:.3f}, {one.high:.3f}]"
