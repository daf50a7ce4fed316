"""One contender, the subject of a report, against every other, over the races of a grid.

The subject is our agent where it takes part, else the contender that ranks best on average. A difference is clear where
the 95 % interval of t / t_rival excludes 1, and within the noise where the interval holds 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.suite.statistics import FEW_SEEDS, OURS, Race, contenders_of, relative_time
from dynamix_ps.sim.contest.comparison import Estimate


@dataclass(frozen=True, slots=True)
class Comparison:
    """The subject's time to the target over that of one rival, t / t_rival."""

    subject: str
    rival: str
    overall: Estimate  # over the races in which both have a seed in common
    by_race: Mapping[str, Estimate]  # by title
    common_seeds: tuple[int, int]  # fewest and most in a race
    is_ranked: bool  # both have enough seeds in every race of the subject

    @property
    def faster(self) -> list[str]:
        """Races in which the subject is clearly faster."""
        return [race for race, one in self.by_race.items() if one.high < 1 and one.low < one.high]

    @property
    def slower(self) -> list[str]:
        """Races in which the subject is clearly slower."""
        return [race for race, one in self.by_race.items() if one.low > 1 and one.low < one.high]

    @property
    def has_interval(self) -> bool:
        """False where some race has few seeds in common, which tell little about the scatter."""
        return self.common_seeds[0] >= FEW_SEEDS

    def verdict(self) -> str:
        """In how many races the difference is clear, for the middle of a sentence."""
        count = len(self.by_race)
        if not self.has_interval:
            less = sum(one.value < 1 for one in self.by_race.values())
            return f"faster in {less} of {count}, from fewer than {FEW_SEEDS} seeds, which give no interval"
        noise = count - len(self.faster) - len(self.slower)
        return (
            f"clearly faster in {len(self.faster)} of {count}, within the noise in {noise}, "
            f"clearly slower in {len(self.slower) or 'none'}"
        )


def subject_of(all_races: Sequence[Race]) -> str | None:
    """Our agent, or the contender that ranks best on average where it does not take part; None without contenders."""
    contenders = contenders_of(all_races)
    if OURS in contenders or not contenders:
        return OURS if contenders else None
    places = {name: [race.ranking().index(name) for race in all_races if name in race.entries] for name in contenders}
    return min(contenders, key=lambda name: float(np.mean(places[name])))


def comparisons(all_races: Sequence[Race]) -> list[Comparison]:
    """The subject against every rival with which it has a seed in common in some race, the strongest rival first."""
    subject = subject_of(all_races)
    if subject is None:
        return []
    rivals = [name for name in contenders_of(all_races) if name != subject]
    found = [one for rival in rivals if (one := _comparison(all_races, subject, rival))]
    return sorted(found, key=lambda one: (not one.is_ranked, -one.overall.value))


def _comparison(all_races: Sequence[Race], subject: str, rival: str) -> Comparison | None:
    shared = [race for race in all_races if race.common_seeds(subject, rival)]
    overall = relative_time(shared, subject, rival)
    if overall is None:
        return None
    titles = titles_of(all_races)
    seeds = [len(race.common_seeds(subject, rival)) for race in shared]
    return Comparison(
        subject=subject,
        rival=rival,
        overall=overall,
        by_race={titles[race.name]: one for race in shared if (one := relative_time([race], subject, rival))},
        common_seeds=(min(seeds), max(seeds)),
        is_ranked=all(
            race.has_enough_seeds(name) for race in all_races if subject in race.entries for name in (subject, rival)
        ),
    )


def titles_of(all_races: Sequence[Race]) -> Mapping[str, str]:
    """Short titles by the races' names: the scenario alone where all races have the same workload."""
    one_workload = len({race.workload for race in all_races}) == 1
    return {race.name: race.scenario if one_workload else race.name for race in all_races}
