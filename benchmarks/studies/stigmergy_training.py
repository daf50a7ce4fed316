"""Whether training the numbers of `policy: stigmergy` together, in a curriculum, makes it faster (simulated).

    python -m benchmarks.studies.stigmergy_training --json FILE

All numbers of its rule (dynamix_ps/policy/stigmergy/settings.py) are searched for at once by the cross-entropy method
(benchmarks/studies/cross_entropy.py). The stages of the curriculum are those of benchmarks/studies/stigmergy.py: 2, 4,
8, 16 and 32 workers, from mild to hard heterogeneity. The first one begins at the numbers that ship, each later one at
the mean that the one before has come to, with the first deviation again. Two searches:

    free      of all numbers
    settling  of those with which an alarm is over after SETTLED windows, as with those that ship: later no size changes
              by more than CALM in a window, while speeds are constant

    score     mean of log (time to the target over that with the numbers that ship), paired by seed. Every generation
              has seeds of its own. A run that never reaches the target counts with its whole length
    trained   the mean after the last stage
    verdict   the trained numbers against those that ship, on clusters and seeds that no stage had, and on the clusters
              of the stages with other seeds: interquartile mean of the ratios with a bootstrap interval of 95 %

Every run is a row of stigmergy-training.csv, written as soon as its cell ends. A later call goes on from there, and
renews the third part of stigmergy.md. Delete the file after a change of the policy or of the simulator. `--quick`
shows that the study works, and keeps its rows in stigmergy-training-quick.csv.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.report.page import markdown, update_page, where
from benchmarks.studies.cross_entropy import Array, Search
from benchmarks.studies.kept_rows import Row, key_of, run_missing, took_s
from benchmarks.studies.stigmergy import ACTOR, SETTLED, STAGES
from benchmarks.studies.stigmergy_page import in_words
from benchmarks.studies.study import resumable_arguments
from benchmarks.studies.trainings import shortened
from dynamix_ps.config.schema import Policy
from dynamix_ps.policy.stigmergy.settings import CALM, NAMES, StigmergySettings
from dynamix_ps.sim.contest.comparison import Estimate, estimate, interquartile_mean
from dynamix_ps.sim.contest.evaluate import Cell, evaluate
from dynamix_ps.sim.scenario.load import Scenario, load_scenario

SEED = 40  # of the search; simulated seeds follow from it
SHIPPED, TRAINED = "shipped", "trained"
FREE, SETTLING = SEARCHES = "free", "settling"
TRAINING, HELD_OUT, SAME = "training", "held out", "same clusters"
DEVIATION = 0.5  # of the log of a number, or of the log of its odds where it is a part
PARTS = {"evaporation": 1.0, "calming": 1.0, "dead_band": CALM}  # numbers that are a part of this
LARGEST_LOG, LARGEST_ODDS = 4.0, 5.0
DIGITS = 4

Numbers = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Length:
    """How much is searched.

    Attributes:
        stages, held_out: clusters, as number of workers and name of a scenario.
        candidates: per generation; the best `elite` of them decide where the next one is.
        seeds: per candidate; `verdict_seeds`: per cluster of the verdict.
    """

    stages: Sequence[tuple[int, str]] = STAGES
    held_out: Sequence[tuple[int, str]] = (
        (3, "h-level-10"),
        (6, "slow-link"),
        (8, "server-ingress"),
        (12, "hl-schedule"),
        (24, "bandwidth-drop"),
    )
    generations: int = 3
    candidates: int = 8
    elite: int = 3
    seeds: int = 2
    verdict_seeds: int = 8
    quick: bool = False

    def cluster(self, workers: int, name: str) -> Scenario:
        """The scenario with so many workers."""
        found = load_scenario(name).with_workers(workers).model_copy(update={"name": f"{name}-{workers}"})
        return shortened(found) if self.quick else found


QUICK = Length(STAGES[:2], ((3, "h-level-10"),), 1, 3, 2, 2, 2, quick=True)


@dataclass(frozen=True, slots=True)
class StudyCell:
    """One set of numbers on one cluster.

    Attributes:
        place: stage and generation, or 0 and 0 in the verdict.
        key: what a row must come from to count for this cell.
    """

    search: str
    part: str
    place: tuple[int, int]
    candidate: str
    scenario: Scenario
    numbers: Numbers
    seeds: int
    seed: int
    key: str = field(init=False)

    def __post_init__(self) -> None:
        of = self.search, self.part, self.place, self.candidate, dict(self.numbers), self.seeds, self.seed
        object.__setattr__(self, "key", key_of([self.scenario], *of))  # once, as it is compared often

    @property
    def title(self) -> str:
        return f"{self.search}, {self.part} {self.scenario.name} {self.place[1]}, {self.candidate}"


def run(cell: StudyCell) -> list[Row]:
    """The rows of one cell, one per seed."""
    policy = Policy(name=ACTOR, options=dict(cell.numbers))
    outcome = evaluate(Cell(cell.scenario, policy, cell.seeds, cell.seed))
    stage, generation = cell.place
    return [
        {
            "search": cell.search,
            "part": cell.part,
            "stage": stage,
            "generation": generation,
            "candidate": cell.candidate,
            "scenario": cell.scenario.name,
            "workers": cell.scenario.n_workers,
            "seed": seed,
            **cell.numbers,
            "time_s": float(outcome.time_s[seed]),
            "reached": bool(outcome.reached[seed]),
        }
        for seed in range(cell.seeds)
    ]


class Unfinished(Exception):
    """The time is over; the same command goes on."""


class Kept:
    """The rows of all cells so far, in memory and in the file."""

    def __init__(self, file: Path, limit_s: float, processes: int) -> None:
        self.rows: list[Row] = []
        self._cells: list[StudyCell] = []
        self._file, self._ends_s, self._processes = file, time.monotonic() + limit_s, processes

    def times_s(self, cells: Sequence[StudyCell]) -> Array:
        """Times of these cells, which have equally many seeds, (cells, seeds). Raises Unfinished."""
        self._cells += cells
        left_s = self._ends_s - time.monotonic()
        self.rows, left = run_missing(self._cells, run, self._file, left_s, self._processes)
        if left:
            raise Unfinished
        found: dict[str, list[float]] = {cell.key: [] for cell in cells}
        for row in self.rows:
            if row["key"] in found:
                found[row["key"]].append(float(row["time_s"]))
        return np.array(list(found.values()))


def point_of(numbers: Numbers) -> Array:
    """Where these numbers are in the space of the search: a log, or the log of the odds of a part."""
    found = []
    for name in NAMES:
        value, whole = numbers[name], PARTS.get(name)
        found.append(np.log(value) if whole is None else np.log(value / (whole - value)))
    return np.array(found)


def numbers_at(point: Array, settles: bool) -> dict[str, float]:
    """The numbers at a point, to DIGITS digits, within what the rule allows.

    Args:
        settles: an alarm that would last longer than SETTLED windows fades faster.
    """
    found = {}
    for name, at in zip(NAMES, point.tolist(), strict=True):
        if name in PARTS:
            value = PARTS[name] / (1 + np.exp(-np.clip(at, -LARGEST_ODDS, LARGEST_ODDS)))
        else:
            value = np.exp(np.clip(at, -LARGEST_LOG, LARGEST_LOG))
        found[name] = float(f"{value:.{DIGITS}g}")
    if settles and found["alarm"] > CALM:
        least = 1 - (CALM / found["alarm"]) ** (1 / SETTLED)
        found["calming"] = max(found["calming"], math.ceil(least * 10**DIGITS) / 10**DIGITS)
    return found


def shipped() -> dict[str, float]:
    """The numbers that ship."""
    return dataclasses.asdict(StigmergySettings())


@dataclass(frozen=True, slots=True)
class Stage:
    """What a stage has come to.

    Attributes:
        first, last: mean score of all candidates in its first and in its last generation; of the best in the last one.
    """

    cluster: str
    first: float
    last: float
    best: float
    numbers: Numbers


def train(length: Length, kept: Kept, of: str) -> list[Stage]:
    """All stages of the curriculum, in the search `of` SEARCHES. Raises Unfinished."""
    settles = of == SETTLING
    stages, mean = [], point_of(shipped())
    for number, (workers, name) in enumerate(length.stages, start=1):
        scenario, search = length.cluster(workers, name), Search(mean, np.full(len(mean), DEVIATION))
        means, best = [], 0.0
        for generation in range(1, length.generations + 1):
            seed = SEED + 100 * number + generation
            points = search.draw(length.candidates, np.random.default_rng(seed))
            tried = {SHIPPED: shipped()} | {
                str(index): numbers_at(point, settles) for index, point in enumerate(points)
            }
            cells = [
                StudyCell(of, TRAINING, (number, generation), candidate, scenario, numbers, length.seeds, seed)
                for candidate, numbers in tried.items()
            ]
            usual, *times = np.log(kept.times_s(cells))
            scores = (np.array(times) - usual).mean(axis=-1)
            search = search.after(points, scores, length.elite)
            means.append(float(scores.mean()))
            best = float(scores.min())
        mean = search.mean
        stages.append(Stage(scenario.name, means[0], means[-1], best, numbers_at(mean, settles)))
    return stages


def judge(length: Length, kept: Kept, of: str, trained: Numbers) -> dict[str, Estimate]:
    """Time with the trained numbers over that with those that ship, by cluster and by part. Raises Unfinished."""
    rng, found = np.random.default_rng(SEED), {}
    for part, clusters in ((HELD_OUT, length.held_out), (SAME, length.stages)):
        ratios = []
        for workers, name in clusters:
            scenario = length.cluster(workers, name)
            cells = [
                StudyCell(of, part, (0, 0), candidate, scenario, numbers, length.verdict_seeds, SEED)
                for candidate, numbers in ((SHIPPED, shipped()), (TRAINED, trained))
            ]
            before, after = kept.times_s(cells)
            ratios.append(after / before)
            found[scenario.name] = estimate(interquartile_mean, ratios[-1][None], rng=rng)
        found[part] = estimate(interquartile_mean, np.stack(ratios), rng=rng)
    return found


@dataclass(frozen=True, slots=True)
class Found:
    """What a search has come to. `verdict`: time over that with the numbers that ship, by cluster and by part."""

    stages: Sequence[Stage]
    verdict: Mapping[str, Estimate]


def tables(found: Mapping[str, Found]) -> str:
    """All tables, in Markdown."""
    parts = [_stages(name, one.stages) for name, one in found.items()]
    clusters = dict.fromkeys(cluster for one in found.values() for cluster in one.verdict)
    ratios = [
        {"clusters": cluster} | {name: in_words(one.verdict[cluster]) for name, one in found.items()}
        for cluster in clusters
    ]
    title = "Time with the trained numbers of each search over that with those that ship, on other seeds"
    return "\n\n".join((*parts, f"{title}:\n\n{markdown(ratios)}"))


def _stages(search: str, stages: Sequence[Stage]) -> str:
    def change(score: float) -> str:
        return f"{100 * np.expm1(score):+.2f} %"

    def told(numbers: Numbers) -> dict[str, str]:
        return {name: f"{numbers[name]:.3g}" for name in NAMES}

    rows = [{"stage": SHIPPED, "first generation": "", "last generation": "", "its best": "", **told(shipped())}]
    rows += [
        {
            "stage": one.cluster,
            "first generation": change(one.first),
            "last generation": change(one.last),
            "its best": change(one.best),
            **told(one.numbers),
        }
        for one in stages
    ]
    title = (
        f"Search `{search}`: time of its candidates over that with the numbers that ship, and the mean of each stage"
    )
    return f"{title}:\n\n{markdown(rows)}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = resumable_arguments(__doc__, quick="too small for meaningful figures; shows that it works")
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    length, stem = (QUICK if args.quick else Length()), "stigmergy-training" + "-quick" * args.quick
    kept, found = Kept(args.out / f"{stem}.csv", args.limit_s, args.jobs), {}
    try:
        for of in SEARCHES:
            stages = train(length, kept, of)
            found[of] = Found(stages, judge(length, kept, of, stages[-1].numbers))
    except Unfinished:
        print("cells are left; the same command goes on")
        return
    command = f"`python -m benchmarks.studies.stigmergy_training{' --quick' * args.quick}`"
    told = f"{command}: {took_s(kept.rows):,.0f} s of one core on {where()}."
    block = f"{told} Simulated.\n\n{tables(found)}\n"
    if args.quick:
        update_page(args.out / f"{stem}.md", block)
    else:
        update_page(args.out / "stigmergy.md", None, None, block)
    print(block)
    if args.json:
        figures = {name: dataclasses.asdict(one) for name, one in found.items()}
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
