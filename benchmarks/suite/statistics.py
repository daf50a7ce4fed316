"""Compares the contenders of a grid: one race per scenario and workload, and all races together.

Definitions, all chosen by us:

- Time to a threshold: seconds of training until the workload's metric on the test data, as the mean of three
  evaluations in a row, is first at least as good as this (results.py). The metric is the accuracy, or for a language
  model bits per byte. A cell that never gets there counts with its limit, or with the longest time that any cell of the
  race needed where that is more: not arriving never looks better than arriving.
- A training whose loss became infinite has not arrived. Cells that failed otherwise count nowhere: a crash tells
  nothing about speed. Contenders are compared in every race over the seeds that both have there.
- `static` is the best of the fixed sizes that were tried in the race: of those with the most seeds (a grid may try the
  others with some seeds only) the one that misses the target least often, then the one with the smallest time, over
  the seeds that all sizes have; where none gets there, that to the highest threshold they do reach. It is chosen by
  seeds that are reported, which is in its favour.
- A contender with fewer seeds than others, and fewer than three, ranks behind them, so that luck does not win.
- Relative time: geometric mean over the seeds of a race of the contender's time over that of the reference with the
  same seed, t / t_ref; over several races their geometric mean. "Faster" is 1 - t / t_ref. Times are geometric means
  over seeds, other figures means. Intervals are over seeds, also where races share them (intervals.py). A figure that
  contains a race of fewer than three seeds has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.suite.contenders import CONTENDERS, is_static
from benchmarks.suite.intervals import Stratum, mean
from benchmarks.suite.metric import METRICS, Metric
from benchmarks.suite.results import CellResult
from dynamix_ps.sim.contest.comparison import Array, Estimate, probability_of_improvement

STATIC = "static"  # the best of static-32, static-64, ...
OURS = "ppo"
FEW_SEEDS = 3  # with fewer, a figure is a first impression

Figure = Callable[[CellResult], float | None]
Seeds = Mapping[int, CellResult]


@dataclass(frozen=True, slots=True)
class Race:
    """All cells of one scenario and workload that did not fail."""

    scenario: str
    workload: str
    entries: Mapping[str, Seeds]  # by contender, `static` among them
    sizes: Mapping[str, Seeds]  # every fixed size that was tried, by its cells' name
    tuned: str  # which of them is `static`; empty where none was tried

    @property
    def name(self) -> str:
        """In words, and unique within a grid."""
        return f"{self.scenario}, {self.workload}"

    @property
    def thresholds(self) -> tuple[float, ...]:
        """Values of the metric whose times count; the last is the target."""
        return next(iter(self._cells())).thresholds

    @property
    def target(self) -> float:
        return self.thresholds[-1]

    @property
    def metric(self) -> Metric:
        """What the thresholds are about."""
        return METRICS[next(iter(self._cells())).metric]

    def counted_s(self, contender: str, threshold: float, seeds: Iterable[int] | None = None) -> Array:
        """Seconds that count (see the module), one per seed."""
        entry = self.entries[contender]
        return self._counted_s([entry[seed] for seed in (entry if seeds is None else seeds)], threshold)

    def time_s(self, contender: str, threshold: float) -> Estimate:
        """Geometric mean over seeds."""
        seeds = self.entries[contender]
        logs = dict(zip(seeds, np.log(self.counted_s(contender, threshold)).tolist(), strict=True))
        return _exp(_over_seeds([logs]))

    def size_s(self, size: str, threshold: float) -> float:
        """Time of one of the fixed sizes that were tried, over the seeds that all of them have, or its own."""
        return self._mean_s(self.tried(size), threshold)

    def tried(self, size: str) -> list[CellResult]:
        """The cells by which a fixed size is compared with the others."""
        shared = set.intersection(*(set(seeds) for seeds in self.sizes.values()))
        return [cell for seed, cell in self.sizes[size].items() if seed in shared or not shared]

    def arrived(self, contender: str) -> int:
        """How many cells reached the target."""
        return _arrived(self.entries[contender].values(), self.target)

    def has_enough_seeds(self, contender: str) -> bool:
        """Whether it may be called the fastest: with three seeds, or as many as anybody has."""
        most = max(len(seeds) for seeds in self.entries.values())
        return len(self.entries.get(contender, {})) >= min(FEW_SEEDS, most)

    def ranking(self) -> list[str]:
        """Contenders by time to the target, fastest first; behind them those with too few seeds."""

        def standing(name: str) -> tuple[bool, float, str]:
            return not self.has_enough_seeds(name), self._mean_s(self.entries[name].values(), self.target), name

        return sorted(self.entries, key=standing)

    def over_seeds(self, contender: str, figure: Figure) -> Estimate | None:
        """Mean over the seeds whose figure is known; None without any."""
        found = {seed: figure(cell) for seed, cell in self.entries[contender].items()}
        known = {seed: value for seed, value in found.items() if value is not None}
        return _over_seeds([known]) if known else None

    def common_seeds(self, *contenders: str) -> set[int]:
        """Seeds that all of these contenders have; empty where one does not take part."""
        return set.intersection(*(set(self.entries.get(name, {})) for name in contenders))

    def first_arrival(self) -> tuple[float, float]:
        """Time and samples that the one that is first there needs for the target, means over seeds; for equal terms.

        Where nobody arrives: the counted time, and the fewest samples of any cell.
        """
        first = self.ranking()[0]
        samples = self.over_seeds(first, lambda cell: samples_to(cell, self.target))
        fewest = min(float(cell.samples) for cell in self._cells())
        return self._mean_s(self.entries[first].values(), self.target), samples.value if samples else fewest

    def _cells(self) -> Iterable[CellResult]:
        for entry in (*self.entries.values(), *self.sizes.values()):
            yield from entry.values()

    def _counted_s(self, cells: Iterable[CellResult], threshold: float) -> Array:
        arrivals = [time for cell in self._cells() if (time := cell.time_to_s(threshold)) is not None]
        longest_s = max(arrivals, default=0.0)
        times = [(cell.time_to_s(threshold), max(cell.limit_s, longest_s)) for cell in cells]
        return np.array([missed if time is None else time for time, missed in times])

    def _mean_s(self, cells: Iterable[CellResult], threshold: float) -> float:
        return math.exp(float(np.log(self._counted_s(cells, threshold)).mean()))


def races(results: Iterable[CellResult]) -> tuple[Race, ...]:
    """Sorted by scenario, then workload."""
    found: dict[tuple[str, str], dict[str, dict[int, CellResult]]] = {}
    for cell in sorted((one for one in results if one.ended != "failed"), key=lambda result: result.name):
        race = found.setdefault((cell.name.scenario, cell.name.workload), {})
        race.setdefault(cell.name.contender, {})[cell.name.seed] = cell
    return tuple(_race(*key, entries) for key, entries in found.items())


def contenders_of(among: Sequence[Race]) -> list[str]:
    """Contenders of any of these races, in the order of the catalogue."""
    known = list(CONTENDERS)
    names = {name for race in among for name in race.entries}
    return sorted(names, key=lambda name: (known.index(name) if name in known else len(known), name))


def with_static(among: Sequence[Race]) -> list[Race]:
    """Races in which a contender can be compared with `static`."""
    return [race for race in among if race.tuned and len(race.entries) > 1]


def relative_time(among: Sequence[Race], contender: str, reference: str) -> Estimate | None:
    """t / t_ref to the target; None where some race has no seed in common, or there is no race."""
    strata: list[Stratum] = []
    for race in among:
        seeds = sorted(race.common_seeds(contender, reference))
        if not seeds:
            return None
        ours_s, theirs_s = (race.counted_s(name, race.target, seeds) for name in (contender, reference))
        strata.append(dict(zip(seeds, np.log(ours_s / theirs_s).tolist(), strict=True)))
    return _exp(_over_seeds(strata)) if strata else None


def improvement(among: Sequence[Race], contender: str, reference: str) -> float | None:
    """Probability that a run of the contender is shorter than one of the reference, over all pairs of seeds, mean over
    races; None as in `relative_time`."""
    chances = []
    for race in among:
        seeds = sorted(race.common_seeds(contender, reference))
        if not seeds:
            return None
        ours_s, theirs_s = (race.counted_s(name, race.target, seeds) for name in (contender, reference))
        chances.append(float(probability_of_improvement(ours_s[None], theirs_s[None])))
    return float(np.mean(chances)) if chances else None


def difference(race: Race, contender: str, reference: str, figure: Figure) -> Estimate | None:
    """Mean of the differences over the seeds that both have."""
    known = {seed: ours - theirs for seed, ours, theirs in _pairs(race, contender, reference, figure)}
    return _over_seeds([known]) if known else None


def log_ratios(race: Race, contender: str, reference: str, figure: Figure) -> Stratum:
    """Logarithms of the ratios of a figure above 0, by the seeds that both have."""
    return {seed: math.log(ours / theirs) for seed, ours, theirs in _pairs(race, contender, reference, figure)}


def ratio(race: Race, contender: str, reference: str, figure: Figure) -> Estimate | None:
    """Geometric mean of these ratios."""
    logs = log_ratios(race, contender, reference, figure)
    return _exp(_over_seeds([logs])) if logs else None


def _pairs(race: Race, contender: str, reference: str, figure: Figure) -> Iterable[tuple[int, float, float]]:
    """Seeds of which the figure is known of both, with both figures."""
    for seed in sorted(race.common_seeds(contender, reference)):
        ours, theirs = (figure(race.entries[name][seed]) for name in (contender, reference))
        if ours is not None and theirs is not None:
            yield seed, ours, theirs


def final_value(cell: CellResult) -> float | None:
    """The metric at the last evaluation after the same samples; None where a training did not get so far in its time.

    What a training goes on for to arrive does not count.
    """
    points = [point for point in cell.curve if point.epoch <= cell.epochs]
    cut_off = cell.ended != "done" and cell.curve and cell.curve[-1].epoch < cell.epochs
    return cell.value(points[-1]) if points and not cut_off else None


def samples_per_s(cell: CellResult) -> float | None:
    """Until the last evaluation, the evaluations left out."""
    last = cell.curve[-1] if cell.curve else None
    return last.samples / last.time_s if last and last.time_s > 0 else None


def seconds_per_sample(cell: CellResult) -> float | None:
    """Over the samples that everybody trains on, the evaluations left out; None where a training was cut off before."""
    points = [point for point in cell.curve if point.epoch <= cell.epochs]
    return points[-1].time_s / points[-1].samples if points and cell.ended == "done" else None


def global_batch(cell: CellResult) -> float | None:
    """Samples per iteration, mean over all of training."""
    return cell.samples / cell.iterations if cell.iterations else None


def samples_to(cell: CellResult, threshold: float) -> float | None:
    """How many samples had been trained on when the metric was first at least as good as this."""
    found = cell.arrival(threshold)
    return None if found is None else found[1]


def global_batch_until(cell: CellResult, threshold: float) -> float | None:
    """Samples per iteration, mean over the time from the first plan until the metric was first as good as this.

    None where it never was, or before any plan.
    """
    arrival_s = cell.time_to_s(threshold)
    if arrival_s is None or not cell.sizes or cell.sizes[0].time_s >= arrival_s:
        return None
    begins_s = [plan.time_s for plan in cell.sizes if plan.time_s < arrival_s]
    lasting_s = np.diff([*begins_s, arrival_s])
    return float(np.average([sum(plan.sizes) for plan in cell.sizes[: len(begins_s)]], weights=lasting_s))


def value_at_time(cell: CellResult, time_s: float) -> float | None:
    """Between two evaluations on the line between them; a training that has ended keeps its last value."""
    return _between(time_s, [point.time_s for point in cell.curve], cell)


def value_at_samples(cell: CellResult, samples: float) -> float | None:
    """The same over samples trained on; None for a training that was cut off before."""
    if cell.ended != "done" and samples > cell.samples:
        return None
    return _between(samples, [float(point.samples) for point in cell.curve], cell)


def _race(scenario: str, workload: str, entries: Mapping[str, Seeds]) -> Race:
    sizes = {name: seeds for name, seeds in entries.items() if is_static(name)}
    others = {name: seeds for name, seeds in entries.items() if name not in sizes}
    untuned = Race(scenario, workload, others, sizes, "")
    if not sizes:
        return untuned

    def standing(name: str) -> tuple[float, ...]:
        """Seeds first: where some failed or have not run yet, a lucky one would win."""
        tried = untuned.tried(name)
        missed = len(tried) - _arrived(tried, untuned.target)
        return -len(sizes[name]), missed, *(untuned.size_s(name, one) for one in reversed(untuned.thresholds))

    tuned = min(sizes, key=standing)
    return Race(scenario, workload, {STATIC: sizes[tuned], **others}, sizes, tuned)


def _over_seeds(strata: Sequence[Stratum]) -> Estimate:
    """Without an interval where a stratum has few seeds."""
    found = mean(strata) if min(map(len, strata)) >= FEW_SEEDS else None
    value = float(np.mean([np.mean(list(one.values())) for one in strata]))
    return found or Estimate(value, value, value)


def _exp(logs: Estimate) -> Estimate:
    return Estimate(math.exp(logs.value), math.exp(logs.low), math.exp(logs.high))


def _arrived(cells: Iterable[CellResult], threshold: float) -> int:
    return sum(cell.time_to_s(threshold) is not None for cell in cells)


def _between(at: float, places: Sequence[float], cell: CellResult) -> float | None:
    if not places or at < places[0]:
        return None
    return float(np.interp(at, places, [cell.value(point) for point in cell.curve]))
