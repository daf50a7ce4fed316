"""Simulated runs of the study of language models: when they have the targets, and ratios over paired seeds.

Losses are evaluated as in the rehearsals, after every sixteenth of the tokens of a whole training, and a target is
reached where the mean of an evaluation and its neighbours is. A ratio is a geometric mean over the targets and over
pairs of one cluster and seed, both clusters alike, with an interval of 95 % over seeds (suite/intervals.py). Who misses
a target counts with the time it ran, or with the longest time that anybody there needs; the ratio then is "at least".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.studies.gpt_cells import CLUSTERS, FIRST_SIZE, TARGETS, TOKENS, WORKERS
from benchmarks.studies.gpt_simulated_fit import PARTS
from benchmarks.studies.gpt_simulated_fit import TOKENS as WHOLE
from benchmarks.studies.gpt_simulated_worlds import World
from benchmarks.studies.kept_rows import Row
from benchmarks.suite.intervals import geometric_mean
from dynamix_ps.run_record.evaluations import first_reached
from dynamix_ps.sim.cluster.simulator import Simulator
from dynamix_ps.sim.contest.comparison import Array, Estimate

TUNED = 2048  # tokens of an iteration of the best fixed size in the rehearsals
NUMBERS = range(len(TARGETS))


@dataclass(frozen=True, slots=True)
class Run:
    """One run; infinite where it has not got there.

    Attributes:
        time_s, tokens: to each target.
        whole_s, whole_loss: after the tokens of a whole training.
        ran_s: all of it.
        batch, largest: tokens of an iteration, mean and largest.
    """

    time_s: tuple[float, ...]
    tokens: tuple[float, ...]
    whole_s: float
    whole_loss: float
    ran_s: float
    batch: float
    largest: float


OF_TARGETS, OF_RUN = ("time_s", "tokens"), ("whole_s", "whole_loss", "ran_s", "batch", "largest")


class Course:
    """Watches the runs of a cell, window by window."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: list[tuple[Array, Array, Array, Array, NDArray[np.bool_]]] = []

    def __call__(self, simulator: Simulator, running: NDArray[np.bool_]) -> None:
        self._seen.append(
            (
                simulator.time_s.copy(),
                simulator.samples * self._world.unit,
                np.asarray(simulator.excess, dtype=np.float64),
                simulator.sizes.sum(axis=-1) * float(self._world.unit),
                running.copy(),
            )
        )

    def of(self, seed: int) -> Run:
        """The run of this seed."""
        training, whole = self._world.training, WHOLE * self._world.times
        time_s, tokens, excess, batch = (
            np.array([seen[part][seed] for seen in self._seen if seen[-1][seed]]) for part in range(4)
        )
        loss = training.last_loss + (training.first_loss - training.last_loss) * excess
        time_s, tokens, loss = (
            np.concatenate(([first], values))
            for first, values in ((0.0, time_s), (0.0, tokens), (training.first_loss, loss))
        )
        at = np.arange(1, int(tokens[-1] / whole * PARTS) + 1) * whole / PARTS
        points = list(zip(*(np.interp(at, tokens, one).tolist() for one in (time_s, tokens, loss)), strict=True))
        reached = [first_reached(points, target.value, target.higher_is_better) for target in TARGETS]
        all_of_it = tokens[-1] >= whole
        return Run(
            time_s=tuple(one.time_s if one else math.inf for one in reached),
            tokens=tuple(one.samples if one else math.inf for one in reached),
            whole_s=float(np.interp(whole, tokens, time_s)) if all_of_it else math.inf,
            whole_loss=float(np.interp(whole, tokens, loss)) if all_of_it else math.inf,
            ran_s=float(time_s[-1]),
            batch=float(tokens[-1] / len(batch) / TOKENS.window),
            largest=float(batch.max()),
        )


def row_of(run: Run) -> Row:
    """Its columns."""
    targets = {f"{name}_{number}": getattr(run, name)[number] for name in OF_TARGETS for number in NUMBERS}
    others = {name: getattr(run, name) for name in OF_RUN}
    return {name: f"{value:.5g}" for name, value in (targets | others).items()}


def run_of(row: Row) -> Run:
    """The run as it was."""
    time_s, tokens = (tuple(float(row[f"{name}_{number}"]) for number in NUMBERS) for name in OF_TARGETS)
    return Run(time_s, tokens, *(float(row[name]) for name in OF_RUN))


class Who(NamedTuple):
    """A contender at a noise scale. Fields as in World."""

    contender: str
    times: int = 1
    unit: int = 1
    first: int = FIRST_SIZE
    left_out: int = 0


Runs = Mapping[tuple[Who, str], Sequence[Run]]  # by contender and cluster, in the order of seeds


def runs_of(rows: Sequence[Row]) -> Runs:
    """From rows as they are in memory or as a file gives them back."""
    found: dict[tuple[Who, str], list[Run]] = {}
    for row in sorted(rows, key=lambda row: int(row["seed"])):
        who = Who(row["contender"], *(int(row[name]) for name in Who._fields[1:]))
        found.setdefault((who, row["cluster"]), []).append(run_of(row))
    return found


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of times. `misses`: whether a run of the contender misses a target, so that it is a lower limit."""

    estimate: Estimate
    misses: bool

    def __str__(self) -> str:
        told = f"{self.estimate.value:.2f} [{self.estimate.low:.2f}, {self.estimate.high:.2f}]"
        return "at least " * self.misses + told


class Contest:
    """Times of all runs that were made with one fit.

    Args:
        whole: a target counts only within the tokens of a whole training, as in the rehearsals.
        statics: fixed sizes of which the best is taken, tokens of every worker; None: all.
    """

    def __init__(self, runs: Runs, *, whole: bool = False, statics: Sequence[str] | None = None) -> None:
        self._runs, self._whole, self._statics = runs, whole, statics

    def has(self, who: Who) -> bool:
        """Whether it has runs on all clusters."""
        return all((who, cluster) in self._runs for cluster in self.clusters)

    @cached_property
    def clusters(self) -> list[str]:
        return [one for one in CLUSTERS if any(cluster == one for _, cluster in self._runs)]

    @cached_property
    def _longest_s(self) -> dict[tuple[int, str], Array]:
        """By noise scale and cluster, of each target."""
        found: dict[tuple[int, str], Array] = {}
        for (who, cluster), runs in self._runs.items():
            for run in runs:
                times_s = self._times_s(run, who.times)
                before = found.get((who.times, cluster), np.zeros(len(TARGETS)))
                found[who.times, cluster] = np.maximum(before, np.where(np.isfinite(times_s), times_s, 0))
        return found

    def _times_s(self, run: Run, times: int) -> Array:
        late = self._whole & (np.array(run.tokens) > WHOLE * times)
        return np.where(late, math.inf, run.time_s)

    def log_s(self, who: Who, cluster: str) -> Array:
        """Log seconds that count, (seeds, targets)."""
        counted = []
        for run in self._runs[who, cluster]:
            times_s = self._times_s(run, who.times)
            ran_s = min(run.whole_s, run.ran_s) if self._whole else run.ran_s
            counted.append(
                np.where(np.isfinite(times_s), times_s, np.maximum(ran_s, self._longest_s[who.times, cluster]))
            )
        return np.log(counted)

    def misses(self, who: Who) -> bool:
        """Whether a run misses a target."""
        runs = [run for cluster in self.clusters for run in self._runs[who, cluster]]
        return any(not np.isfinite(self._times_s(run, who.times)).all() for run in runs)

    def best_static(self, times: int, cluster: str) -> Who:
        """The fixed size with the smallest mean log time."""
        sizes = [
            who
            for who, where in self._runs
            if where == cluster and who.times == times and who.contender.startswith("static")
            if self._statics is None or who.contender in self._statics
        ]
        return min(sizes, key=lambda who: float(self.log_s(who, cluster).mean()))

    def over(self, who: Who, other: Who | None = None) -> Ratio:
        """Time over that of the other, or over that of the best fixed size at the same noise scale."""
        strata = []
        for cluster in self.clusters:
            rival = other or self.best_static(who.times, cluster)
            logs = (self.log_s(who, cluster) - self.log_s(rival, cluster)).mean(axis=1)
            strata.append(dict(enumerate(logs.tolist())))
        ratio = geometric_mean(strata)
        assert ratio is not None  # every cell has two seeds or more
        return Ratio(ratio, self.misses(who))

    def batch(self, who: Who) -> float:
        """Tokens of an iteration, mean over runs."""
        return float(np.mean([run.batch for cluster in self.clusters for run in self._runs[who, cluster]]))

    def largest(self, who: Who) -> float:
        """Tokens of the largest iteration of any run."""
        return max(run.largest for cluster in self.clusters for run in self._runs[who, cluster])


def static(tokens: int, times: int = 1, left_out: int = 0) -> Who:
    """The fixed size with so many tokens in an iteration of all workers."""
    return Who(f"static-{tokens // WORKERS}", times, left_out=left_out)
