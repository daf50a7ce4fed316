"""What a deadline inside the iteration gains or costs, by its factor (simulated).

    python -m benchmarks.studies.clusters.deadline [--limit-s SECONDS]

Iterations are simulated one by one (dynamix_ps/sim/cluster/deadline.py), those without a deadline too, so changes come
in the middle of windows. Clusters:

- `bed-`: those of the bed (benchmarks/scenarios), whose times come from its cells with fixed sizes, as in bed/clock.py.
  Their exchange is in the fixed time, and gradients travel in one bucket, so nothing hides behind the backward pass.
  Sizes and windows are those of the bed's workload. The training is the simulator's with that workload's noise scale.
- `recurring` and `homogeneous` as the simulator ships them, where half of the backward pass hides pushes, and the same
  with nothing hidden.

Contenders: the policy `model` without a safety net, and an oracle, which knows the speeds at the beginning of a window,
with and without a deadline; and an oracle that decides before every iteration, so that no speed changes unseen.
Variants of the factor 1.15: parts with a forward pass of their own, which can be left out too; parts for the 20
iterations after a late one, not 100, and that with 1.3; fewer parts.

Figures are ratios, paired by seed: interquartile means with a bootstrap interval of 95 %. Runs are kept in deadline.csv
cell by cell; the same command goes on. Delete the file after a change of policies or of the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.report.page import RESULTS, markdown
from benchmarks.studies.bed.clock import FULL, UNEVEN, core_of
from benchmarks.studies.clusters.ceiling import ORACLE, in_words
from benchmarks.studies.kept_rows import Row, contest_of, key_of
from benchmarks.studies.study import Report, run_kept_study
from benchmarks.studies.trainings import shortened
from benchmarks.suite.contenders import NO_SAFETY_NET
from benchmarks.suite.scenario import load_scenario as load_bed_scenario
from benchmarks.suite.simulated import simulated
from benchmarks.suite.tables import read_tables
from benchmarks.suite.workloads import load_workload
from dynamix_ps.config.schema import PolicySection
from dynamix_ps.sim.cluster.deadline import DeadlineSettings
from dynamix_ps.sim.contest.comparison import Array, Estimate, estimate, interquartile_mean
from dynamix_ps.sim.contest.contest import Contest
from dynamix_ps.sim.contest.evaluate import SEEDS, Cell, evaluate
from dynamix_ps.sim.contest.pictures import dots
from dynamix_ps.sim.scenario.load import Scenario, load_scenario
from dynamix_ps.sim.scenario.parts import Bounds, TrainingModel

BED = ("spot", "bursts", "hl-schedule", "homogeneous", "h-level-4")
SHIPPED = ("recurring", "homogeneous")
NOTHING_HIDDEN = "recurring"
WORKLOAD, MODEL_BYTES = "fashion-cnn-short", 8.6e5
NOISE_PART = 240 / 1000  # the noise scale of that workload over that of the simulator's training, half-way
PROGRESS_SCALE = 75.0  # less than a third of the simulator's, so that a training takes some 100 s
LASTING_S = 600.0
MODEL = PolicySection(name="model", safety=NO_SAFETY_NET)
FACTORS = (1.05, 1.15, 1.3, 1.6)
AUTO = 1.15
OFF, ORACLE_AUTO, EVERY_ITERATION = "off", "oracle, 1.15", "oracle, every iteration"
VARIANTS = {
    "forward cut too": DeadlineSettings(AUTO, cuts_forward=True),
    "20 iterations": DeadlineSettings(AUTO, lately=20),
    "20 iterations, 1.3": DeadlineSettings(1.3, lately=20),
    "2 parts": DeadlineSettings(AUTO, parts=2),
    "4 parts": DeadlineSettings(AUTO, parts=4),
}
CONTENDERS: dict[str, tuple[PolicySection | None, DeadlineSettings]] = {
    OFF: (MODEL, DeadlineSettings()),
    **{str(factor): (MODEL, DeadlineSettings(factor)) for factor in FACTORS},
    ORACLE: (None, DeadlineSettings()),
    ORACLE_AUTO: (None, DeadlineSettings(AUTO)),
    EVERY_ITERATION: (None, DeadlineSettings()),
    **{name: (MODEL, settings) for name, settings in VARIANTS.items()},
}
QUIET = (OFF, *map(str, FACTORS))


@dataclass(frozen=True, slots=True)
class DeadlineCell:
    """One contender on one cluster."""

    scenario: Scenario
    name: str
    seeds: int

    @property
    def title(self) -> str:
        return f"{self.scenario.name}, {self.name}"

    @property
    def key(self) -> str:
        return key_of([self.scenario], self.name, self.seeds, asdict(CONTENDERS[self.name][1]))


def clusters() -> Iterator[Scenario]:
    """Of the bed, and those that ship: with overlap, and without."""
    core, workload = core_of(FULL, UNEVEN, read_tables(RESULTS / FULL.stem)), load_workload(WORKLOAD)
    changed = {
        "model_bytes": MODEL_BYTES,
        "overlap": 0.0,
        "window": workload.window,
        "initial_batch": workload.batch,
        "batch": Bounds(min=workload.min, max=workload.max),
        "training": TrainingModel(
            noise_scale=200 * NOISE_PART, gap_batch=1500 * NOISE_PART, progress_scale=PROGRESS_SCALE
        ),
    }
    for name in BED:
        bed = simulated(load_bed_scenario(name), core, LASTING_S)
        yield bed.model_copy(update=changed | {"name": f"bed-{name}"})
    yield from map(load_scenario, SHIPPED)
    yield load_scenario(NOTHING_HIDDEN).model_copy(update={"name": f"{NOTHING_HIDDEN}-nothing-hidden", "overlap": 0.0})


def cells_of(quick: bool) -> list[DeadlineCell]:
    """All contenders where clusters change, else `model` by factor; `quick`: two clusters, shortened, two seeds."""
    chosen = list(clusters())
    if quick:
        chosen = [shortened(one) for one in chosen if one.name in ("bed-homogeneous", "recurring")]
    return [
        DeadlineCell(one, name, 2 if quick else SEEDS)
        for name in CONTENDERS
        for one in chosen
        if name in QUIET or not one.constant
    ]


def run(cell: DeadlineCell) -> list[Row]:
    """The rows of a cell."""
    policy, settings = CONTENDERS[cell.name]
    scenario = cell.scenario
    if cell.name == EVERY_ITERATION:
        scenario = scenario.model_copy(update={"window": 1, "max_windows": scenario.max_windows * scenario.window})
    outcome = evaluate(Cell(scenario, policy, cell.seeds, 0, settings))
    contest = Contest((scenario.name,), (cell.name,), {(cell.name, scenario.name): outcome}, {})
    return list(contest.rows())


class Findings:
    """What the rows say of one cluster."""

    def __init__(self, rows: Sequence[Row], scenario: str) -> None:
        self.scenario = scenario
        self._contest = contest_of([row for row in rows if row["scenario"] == scenario], scenario)

    def has(self, names: Sequence[str]) -> bool:
        """Whether all of these took part."""
        return set(names) <= set(self._contest.policies)

    def times(self, name: str, over: str) -> Estimate:
        """Time to the target over that of another contender."""
        return _ratio(*(self._contest.counted_s(one, self.scenario) for one in (name, over)))

    def clocks(self, name: str, over: str) -> Estimate:
        """The same of seconds per sample."""
        return _ratio(*(1 / self._contest.outcomes[one, self.scenario].samples_per_s for one in (name, over)))


def _ratio(ours: Array, theirs: Array) -> Estimate:
    return estimate(interquartile_mean, (ours / theirs)[None], rng=np.random.default_rng(0))


Ratio = Callable[[Findings, str, str], Estimate]


def report(rows: Sequence[Row]) -> Report:
    """What all rows say."""
    found = [Findings(rows, name) for name in dict.fromkeys(row["scenario"] for row in rows)]

    def table(pairs: Mapping[str, tuple[str, str]], of: Ratio = Findings.times) -> str:
        some = [one for one in found if one.has([name for pair in pairs.values() for name in pair])]
        return markdown(
            [
                {"cluster": one.scenario} | {title: in_words(of(one, *pair)) for title, pair in pairs.items()}
                for one in some
            ]
        )

    factors, variants = ({name: (name, OFF) for name in names} for names in (map(str, FACTORS), VARIANTS))
    pairs = [(name, over) for over in (ORACLE, EVERY_ITERATION) for name in (OFF, str(AUTO))]
    left = {f"{name} / {over}": (name, over) for name, over in (*pairs, (ORACLE_AUTO, ORACLE))}
    seeds = len({str(row["seed"]) for row in rows})
    told = (
        f"{seeds} seeds. Time to target of `model`, over that without a deadline, by factor:\n\n{table(factors)}\n\n"
        f"Seconds per sample, over those without a deadline:\n\n{table(factors, Findings.clocks)}\n\n"
        f"Variants, time to target over that without a deadline:\n\n{table(variants)}\n\n"
        f"What is left, time to target:\n\n{table(left)}"
    )
    names = [one.scenario for one in found]
    columns = {name: [one.times(name, OFF) for one in found] for name in factors}
    title = "Simulated time to target with a deadline: interquartile mean over paired seeds, 95 % interval"
    figures = {
        one.scenario: {name: asdict(one.times(name, OFF)) for name in CONTENDERS if one.has([name])} for one in found
    }
    return Report(told, lambda figure: dots(figure, names, columns, "time over that without", title), figures)


def main(arguments: Sequence[str] | None = None) -> None:
    run_kept_study("clusters.deadline", __doc__, cells_of, run, report, arguments)


if __name__ == "__main__":
    main()
