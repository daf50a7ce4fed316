"""Batches of language models from 2^10 to 2^22 tokens, in the simulator fitted to rehearsed runs.

    python -m benchmarks.studies.gpt_simulated --json FILE

The study of language models (gpt.py) has batches of up to 2^17 tokens with real gradients, and a model whose noise
scale is small. Here the simulator's training is fitted to its fixed sizes and checked on what the fit has not seen:
runs with other seeds, sizes that were left out, and contenders. Then the noise scale grows by up to 512 times, to where
the batches of large models are. The other modules:

    gpt_simulated_fit.py      the fit
    gpt_simulated_worlds.py   clusters and trainings, and what grows with the noise scale
    gpt_simulated_runs.py     arrivals at the targets, ratios over paired seeds
    gpt_simulated_check.py    what was simulated beside what was rehearsed
    gpt_simulated_page.py     tables and picture

Contenders are those of gpt.py. All begin with 512 tokens per worker, however large the noise scale is, or with what
their bounds allow; once, the first sizes have grown with it. The paper's space counts tokens, or sequences of 64, 1,024
or 2,048 tokens; `ppo in its bounds` is the policy that ships with these bounds, so what it loses is owed to them, and
not to the agent of DYNAMIX.

Every run is a row of gpt-simulated.csv, written as soon as its cell ends, and a later call runs what is missing. Delete
the file after a change of policies or of the simulator. A run that has missed a target after WINDOWS windows counts
with the time it ran.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.studies.gpt_cells import AGENT, CLUSTERS, FIRST_SIZE, GOODPUT, MODEL, PAPER_TOKENS, WORKERS, contenders
from benchmarks.studies.gpt_simulated_fit import SIZES, fit, halves, mean_losses, measured_noise, rehearsed_runs
from benchmarks.studies.gpt_simulated_page import report
from benchmarks.studies.gpt_simulated_runs import TUNED, Course, row_of
from benchmarks.studies.gpt_simulated_worlds import (
    FIXED,
    FREE,
    IN_BOUNDS,
    PAPER,
    TIMES,
    UNITS,
    World,
    paper_bounds,
)
from benchmarks.studies.kept_rows import Row, key_of
from benchmarks.studies.study import run_kept_study
from dynamix_ps.config.schema import Policy
from dynamix_ps.sim.contest.evaluate import Cell, evaluate
from dynamix_ps.sim.scenario.load import Scenario
from dynamix_ps.sim.scenario.parts import Training

SEEDS = 10  # of each cluster
SEED = 0
WINDOWS, STATIC_WINDOWS = 4500, 20_000  # at most, of a run; fixed sizes decide nothing and are fast
ALONG = 64  # times the noise scale, for the runs whose first sizes have grown with it


@dataclass(frozen=True, slots=True)
class StudyCell:
    """A contender in a world.

    Attributes:
        size: tokens of every worker, of a fixed size.
        left_out: tokens of an iteration of the size that the fit has not seen; 0: it has seen all.
    """

    world: World
    contender: str
    size: int = 0
    left_out: int = 0
    seeds: int = SEEDS

    @property
    def title(self) -> str:
        world = self.world
        return f"{world.cluster}, noise scale x{world.times}, {self.contender}, size of {world.unit} tokens"

    @property
    def key(self) -> str:
        return key_of([self.scenario], self.contender, self.size, self.left_out, self.seeds)

    @property
    def scenario(self) -> Scenario:
        in_bounds = self.contender in (PAPER, IN_BOUNDS)
        found = self.world.scenario(paper_bounds(self.world.unit) if in_bounds else FREE)
        return found.model_copy(update={"max_windows": STATIC_WINDOWS if self.size else WINDOWS})

    def policy(self, folder: Path) -> Policy:
        """`folder`: gets the file of the policy that has learned nothing."""
        if self.size:
            return Policy(name="static", sizes=(self.size,) * WORKERS)
        known = {PAPER: PAPER_TOKENS, IN_BOUNDS: AGENT}
        return contenders(folder)[known.get(self.contender, self.contender)].policy


def cells_of(quick: bool) -> list[StudyCell]:
    """All cells; `quick`: a few of one cluster."""
    losses = mean_losses(halves(rehearsed_runs())[0])
    noise = measured_noise()
    clusters, seeds = (CLUSTERS[:1], 2) if quick else (CLUSTERS, SEEDS)
    training = fit(losses, noise)
    left_out = {
        one: fit({size: losses[size] for size in losses if size != one}, noise)
        for one in [*SIZES][:: 8 if quick else 1]
    }
    return [
        cell
        for cluster in clusters
        for cell in (*_checks(cluster, left_out, seeds), *_carried_on(cluster, training, seeds, quick))
    ]


def _checks(cluster: str, left_out: dict[int, Training], seeds: int) -> Iterator[StudyCell]:
    """Every size, and the tuned one, with the fit that has not seen it."""
    for tokens, training in left_out.items():
        for size in dict.fromkeys((tokens, TUNED)):
            yield StudyCell(World(cluster, training), f"static-{size // WORKERS}", size // WORKERS, tokens, seeds)


def _carried_on(cluster: str, training: Training, seeds: int, quick: bool) -> Iterator[StudyCell]:
    for times in TIMES[: 2 if quick else None]:
        world = World(cluster, training, times)
        for tokens in FIXED:
            yield StudyCell(world, f"static-{tokens // WORKERS}", tokens // WORKERS, seeds=seeds)
        for contender in (AGENT, MODEL, GOODPUT):
            yield StudyCell(world, contender, seeds=seeds)
            if times == ALONG:
                grown = World(cluster, training, times, first=FIRST_SIZE * times)
                yield StudyCell(grown, contender, seeds=seeds)
        for unit in UNITS[: 2 if quick else None]:
            for contender in (PAPER, IN_BOUNDS):
                yield StudyCell(World(cluster, training, times, unit), contender, seeds=seeds)


def run(cell: StudyCell) -> list[Row]:
    """A row per seed."""
    world = cell.world
    course = Course(world)
    with TemporaryDirectory(prefix="dynamix-") as folder:
        evaluate(Cell(cell.scenario, cell.policy(Path(folder)), cell.seeds, SEED), course)
    head = {
        "cluster": world.cluster,
        "times": world.times,
        "unit": world.unit,
        "first": world.first,
        "left_out": cell.left_out,
        "contender": cell.contender,
    }
    return [head | {"seed": seed} | row_of(course.of(seed)) for seed in range(cell.seeds)]


def main(arguments: Sequence[str] | None = None) -> None:
    run_kept_study("gpt_simulated", __doc__, cells_of, run, report, arguments)


if __name__ == "__main__":
    main()
