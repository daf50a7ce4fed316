"""Figures, tables and picture of the study of how far the reward and k may be off."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from benchmarks.report.page import markdown
from benchmarks.studies.kept_rows import Row, contest_of
from benchmarks.studies.study import Report
from benchmarks.studies.trainings import over_trainings
from dynamix_ps.report.plots.style import WORKER_COLOURS
from dynamix_ps.sim.contest.comparison import Array, Estimate, estimate, interquartile_mean
from dynamix_ps.sim.contest.contest import Contest

BASE, SHIPS = "usual weights, small training", "ppo"
PAPER_SPACE = "paper's reward and actions"
WEIGHTS = ("efficiency", "throughput", "change", "balance")
K_ANEW, K_SHIPS = "k, trained anew", "k, the policy that ships"
REFERENCES = {**dict.fromkeys((*WEIGHTS, K_ANEW), BASE), K_SHIPS: SHIPS}  # of what is changed by a factor
ALLOWED = 1.05  # of the time with factor 1


def variant_name(what: str, factor: float) -> str:
    """As in `throughput x 1/2`."""
    return f"{what} x {Fraction(factor)}"


@dataclass(frozen=True, slots=True)
class Figures:
    """All figures. Ratios are times over those with factor 1, or over those of the policy that ships."""

    factors: Mapping[str, Mapping[float, Estimate]]  # by what is changed, and factor
    by_workload: Mapping[str, Mapping[str, Mapping[float, Estimate]]]  # the same by workload
    others: Mapping[str, Estimate]  # over the policy that ships
    missed: Mapping[str, float]  # part of the runs that never reached the target, by variant


class _Times:
    """Times of all runs, by variant."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.scenarios = list(dict.fromkeys(row["scenario"] for row in rows))
        self._contests: dict[str, Contest] = {
            name: contest_of([row for row in rows if row["scenario"] == name], name) for name in self.scenarios
        }
        self.policies: dict[str, list[str]] = {}
        for row in rows:
            found = self.policies.setdefault(row["variant"], [])
            if row["policy"] not in found:
                found.append(row["policy"])

    def over(self, variant: str, reference: str, workload: str = "") -> Estimate:
        """Time over that of the reference, paired by training (where both have some) and by seed.

        Low and high are single trainings; of one training, or none, they are a 95 % interval.
        """
        names = [name for name in self.scenarios if name.startswith(workload)]
        its = self.policies[reference]
        ratios = [
            self._counted_s(policy, names) / self._counted_s(its[place % len(its)], names)
            for place, policy in enumerate(self.policies[variant])
        ]
        if len(ratios) > 1:
            return over_trainings(ratios)
        return estimate(interquartile_mean, *ratios, rng=np.random.default_rng(0))

    def _counted_s(self, policy: str, scenarios: Sequence[str]) -> Array:
        return np.stack([self._contests[name].counted_s(policy, name) for name in scenarios])


def figures_of(rows: Sequence[Row]) -> Figures:
    """All figures, from rows as they are in memory or as a file gives them back."""
    times = _Times(rows)
    changed: dict[str, dict[float, str]] = {}
    for variant in times.policies:
        what, cross, factor = variant.rpartition(" x ")
        if cross:
            changed.setdefault(what, {})[float(Fraction(factor))] = variant

    def ratios(workload: str) -> dict[str, dict[float, Estimate]]:
        return {
            what: {factor: times.over(name, reference, workload) for factor, name in sorted(changed[what].items())}
            for what, reference in REFERENCES.items()
            if what in changed
        }

    alone = [name for name in times.policies if " x " not in name and name != SHIPS]
    reached = {
        name: float(np.mean([str(row["reached"]) == "True" for row in rows if row["variant"] == name]))
        for name in times.policies
    }
    return Figures(
        factors=ratios(""),
        by_workload={name: ratios(name) for name in workloads_of(times.scenarios)},
        others={name: times.over(name, SHIPS) for name in alone},
        missed={name: 1 - part for name, part in reached.items()},
    )


def workloads_of(scenarios: Sequence[str]) -> list[str]:
    """The workloads of scenarios of surrogate_worlds.py, whose names begin with them: as in cnn-sgd."""
    return list(dict.fromkeys("-".join(name.split("-")[:2]) for name in scenarios))


def may_be_off(ratios: Mapping[float, Estimate]) -> tuple[float, float]:
    """The smallest and largest factor up to which, from 1 outwards, `high` is at most ALLOWED; 0 does not count."""
    low = high = 1.0
    for factor in sorted((one for one in ratios if 0 < one < 1), reverse=True):
        if ratios[factor].high > ALLOWED:
            break
        low = factor
    for factor in sorted(one for one in ratios if one > 1):
        if ratios[factor].high > ALLOWED:
            break
        high = factor
    return low, high


def report(rows: Sequence[Row]) -> Report:
    """What all rows say."""
    found = figures_of(rows)
    told = dataclasses.asdict(found) | {"may_be_off": {what: may_be_off(one) for what, one in found.factors.items()}}
    return Report(tables(found), lambda figure: picture(figure, found), told)


def tables(found: Figures) -> str:
    """Ratios by factor, what each may be off by workload, and what was not changed by a factor, in Markdown."""
    factors = sorted({factor for one in found.factors.values() for factor in one})
    by_factor = [
        {"changed": what}
        | {f"x {Fraction(factor)}": in_words(one[factor]) if factor in one else "" for factor in factors}
        | {"may be off": _range(one)}
        for what, one in found.factors.items()
    ]
    by_workload = [
        {"changed": what} | {name: _range(of_all[what]) for name, of_all in found.by_workload.items()}
        for what in found.factors
    ]
    others = [
        {"policy": name, "time": in_words(one), "missed": f"{100 * found.missed[name]:.0f} %"}
        for name, one in found.others.items()
    ]
    return "\n\n".join(
        (
            f"Time to target over that with factor 1:\n\n{markdown(by_factor)}",
            f"Factors up to which at most 5 % is lost, by workload:\n\n{markdown(by_workload)}",
            f"Over the policy that ships:\n\n{markdown(others)}",
        )
    )


def in_words(one: Estimate) -> str:
    """As in 1.01 (1.00 to 1.02)."""
    return f"{one.value:.2f} ({one.low:.2f} to {one.high:.2f})"


def _range(ratios: Mapping[float, Estimate]) -> str:
    low, high = may_be_off(ratios)
    return f"{Fraction(low)} to {Fraction(high)}"


def picture(figure: Any, found: Figures) -> None:
    """One line per weight or k, over the factor."""
    figure.set_size_inches(9, 4.6)
    axes = figure.subplots()
    for colour, (what, ratios) in zip(WORKER_COLOURS * 2, found.factors.items(), strict=False):
        points = {factor: one for factor, one in ratios.items() if factor} | {1.0: Estimate(1.0, 1.0, 1.0)}
        places = sorted(points)
        axes.plot(places, [points[one].value for one in places], "o-", color=colour, label=what)
        low, high = ([getattr(points[one], side) for one in places] for side in ("low", "high"))
        axes.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.axhline(ALLOWED, color="#777777", linestyle="--", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_yticks([0.9, 1, 1.2, 1.5, 2, 4, 8], ["0.9", "1", "1.2", "1.5", "2", "4", "8"])
    axes.set_xticks([0.25, 0.5, 1, 2, 4], ["1/4", "1/2", "1", "2", "4"])
    axes.set(xlabel="factor", ylabel="time to target over that with factor 1")
    axes.set_title("How far a weight or k may be off (simulated); dashed: 5 % lost", loc="left", fontsize=10)
    axes.grid(color="#e5e5e5")
    axes.legend(fontsize="small")
