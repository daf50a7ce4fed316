"""Decisions without a centre, beside the central agent and its rivals (simulated).

    python -m benchmarks.studies.clusters.stigmergy --json FILE

Every worker of `stigmergy` chooses its own size, from its own windows and traces that ride in the gradient sum
(dynamix_ps/policy/stigmergy). Contenders:

    stigmergy      no arbitrator and no messages: the traces are part of the sum that training makes anyway
    ppo            the central agent that ships, with its safety net
    goodput, pid   as benchmarks/studies/clusters/policies.py has them
    tuned-static   the best size for all workers, tuned on the reported seeds
    first-sizes    the first sizes to the end: what every central policy comes to if the control network is cut from the
                   start. `stigmergy` has no such network, so for it nothing is different then

Three questions:

    scenarios   time to the target on all shipped scenarios without effects of real machines
    sizes       the same with 2 to 32 workers, from mild to hard heterogeneity (STAGES)
    settings    what each number of the actor's rule is worth: half of it and twice of it (1.4 times the dead band), on
                the same clusters. Where neither is faster, there is nothing to learn

Ratios are interquartile means over seeds and scenarios, paired by seed, with an interval of 95 % over seeds, which all
scenarios share: jackknife (suite/intervals.py).
A run that never reaches the target counts as in policies.py. Beside the time, of every window until the target:

    waiting    part of the time in which a worker waits for slower ones, mean over workers
    moved      relative change of a worker's size from window to window, mean
    reversed   part of all changes of a size that take back some of the change before
    largest    the largest change of any size later than SETTLED windows, on constant clusters; changes by one sample do
               not count

Every run is a row of stigmergy.csv, written as soon as its cell ends. A later call runs what is missing or belongs to a
scenario or a policy that is another one now, and renews the page, which has the clusters that are complete. Delete the
file after a change of policies or of the simulator. `--quick` runs two seeds over twenty windows, and keeps its rows in
stigmergy-quick.csv.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.report.page import draw, update_page, where
from benchmarks.studies.clusters.stigmergy_page import ACTOR_NAME, CENTRAL, FIRST_SIZES, blocks, figures_of, picture
from benchmarks.studies.kept_rows import Row, run_missing, took_s
from benchmarks.studies.study import resumable_arguments
from benchmarks.studies.trainings import shortened
from dynamix_ps.config.schema import PolicySection
from dynamix_ps.policy.stigmergy.settings import NAMES, StigmergySettings
from dynamix_ps.sim.cluster.simulator import Simulator
from dynamix_ps.sim.contest.contest import TUNED, best_size, uniform_sizes
from dynamix_ps.sim.contest.evaluate import Cell, SimulatedOutcome, evaluate
from dynamix_ps.sim.scenario.effects import effects_of
from dynamix_ps.sim.scenario.load import Scenario, dump_scenario, load_scenario, shipped

SEEDS, STAGE_SEEDS = 10, 6
SEED = 0
SETTLED = 10  # windows
STAGES = ((2, "h-level-2"), (4, "h-level-4"), (8, "h-level-8"), (16, "noisy-neighbour"), (32, "spot-slowdown"))
ACTOR = "dynamix_ps.policy.stigmergy.policy:StigmergyPolicy"
LARGER = {"dead_band": 1.4}  # twice of it is refused
CONTENDERS = {
    ACTOR_NAME: PolicySection(name=ACTOR),
    **{name: PolicySection(name=name) for name in CENTRAL},
    TUNED: PolicySection(name="static"),
    FIRST_SIZES: PolicySection(name="static"),
}
AT_STAGES = (ACTOR_NAME, *CENTRAL)


def variants() -> dict[str, PolicySection]:
    """The actor with one number of its rule at half and at twice of what it is, and without damping."""
    usual = StigmergySettings()
    found = {
        f"{name} x {factor:g}": {name: factor * getattr(usual, name)}
        for name in NAMES
        for factor in (0.5, LARGER.get(name, 2))
    }
    found["crowding x 0"] = {"crowding": 0.0}
    return {name: PolicySection(name=ACTOR, options=options) for name, options in found.items()}


@dataclass(frozen=True, slots=True)
class StudyCell:
    """One contender on one cluster, for one question."""

    question: str
    scenario: Scenario
    contender: str
    policy: PolicySection
    seeds: int

    @property
    def title(self) -> str:
        return f"{self.scenario.name}, {self.contender}"

    @property
    def key(self) -> str:
        """What a row must come from to count for this cell."""
        policy = self.policy.model_dump_json(exclude_defaults=True)
        text = f"{dump_scenario(self.scenario)}{self.contender}{policy}{self.seeds}"
        text += repr(StigmergySettings()) * (self.policy.name == ACTOR)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


class Watch:
    """What happens in the windows until the target; arrays of (seeds,)."""

    def __init__(self, seeds: int) -> None:
        self._windows, self._waiting, self._moved = np.zeros(seeds), np.zeros(seeds), np.zeros(seeds)
        self._changes, self._reversed, self._largest = np.zeros(seeds), np.zeros(seeds), np.zeros(seeds)
        self._sizes: NDArray[np.int64] | None = None
        self._last: NDArray[np.int64] | None = None  # the newest change of every size

    def __call__(self, simulator: Simulator, running: NDArray[np.bool_]) -> None:
        times = simulator.times
        assert times is not None
        self._waiting += running * (times.wait_s.mean(axis=-1) / times.iteration_s)
        self._windows += running
        sizes = simulator.sizes
        if self._sizes is None or self._last is None:
            self._last = np.zeros(sizes.shape, dtype=np.int64)
        else:
            change = sizes - self._sizes
            relative = np.abs(change) / np.maximum(self._sizes, 1)
            self._moved += running * relative.mean(axis=-1)
            self._changes += running * (change != 0).sum(axis=-1)
            self._reversed += running * (np.sign(change) * np.sign(self._last) < 0).sum(axis=-1)
            late = running & (simulator.windows > SETTLED + 1)
            beyond = np.where(np.abs(change) > 1, relative, 0.0).max(axis=-1)
            self._largest = np.maximum(self._largest, late * beyond)
            self._last = np.where(change != 0, change, self._last)
        self._sizes = sizes.copy()

    def rows(self) -> Iterator[dict[str, float]]:
        """One per seed."""
        windows, changes = np.maximum(self._windows, 1), np.maximum(self._changes, 1)
        for seed in range(len(windows)):
            yield {
                "waiting": float(self._waiting[seed] / windows[seed]),
                "moved": float(self._moved[seed] / windows[seed]),
                "reversed": float(self._reversed[seed] / changes[seed]),
                "largest": float(self._largest[seed]),
            }


def cells_of(quick: bool) -> list[StudyCell]:
    """All cells; `quick`: of two scenarios and two stages, shortened."""
    scenarios = [one for one in map(load_scenario, shipped()) if not effects_of(one)]
    stages: Sequence[tuple[int, str]] = STAGES
    seeds, stage_seeds = SEEDS, STAGE_SEEDS
    if quick:
        scenarios, stages = [shortened(one) for one in scenarios[:2]], STAGES[:2]
        seeds = stage_seeds = 2
    cells = [
        StudyCell("scenarios", scenario, name, policy, seeds)
        for scenario in scenarios
        for name, policy in CONTENDERS.items()
    ]
    for workers, name in stages:
        scenario = load_scenario(name).with_workers(workers).model_copy(update={"name": f"{name}-{workers}"})
        stage = shortened(scenario) if quick else scenario
        cells += [StudyCell("sizes", stage, one, CONTENDERS[one], stage_seeds) for one in AT_STAGES]
        cells += [StudyCell("settings", stage, one, policy, stage_seeds) for one, policy in variants().items()]
    return cells


def of_complete_clusters(cells: Sequence[StudyCell], rows: Sequence[Row]) -> list[Row]:
    """The rows of clusters on which all contenders have run."""
    done = {row["key"] for row in rows}
    incomplete = {cell.scenario.name for cell in cells if cell.key not in done}
    return [row for row in rows if row["scenario"] not in incomplete]


def run(cell: StudyCell) -> list[Row]:
    """The rows of one cell, one per seed."""
    outcome, watch, size = _tuned(cell) if cell.contender == TUNED else (*_watched(cell, cell.policy), "")
    return [
        {
            "question": cell.question,
            "scenario": cell.scenario.name,
            "workers": cell.scenario.n_workers,
            "constant": cell.scenario.constant,
            "policy": cell.contender,
            "seed": seed,
            **{field.name: getattr(outcome, field.name)[seed].item() for field in dataclasses.fields(SimulatedOutcome)},
            **seen,
            "size": size,
        }
        for seed, seen in enumerate(watch.rows())
    ]


def _watched(cell: StudyCell, policy: PolicySection) -> tuple[SimulatedOutcome, Watch]:
    watch = Watch(cell.seeds)
    return evaluate(Cell(cell.scenario, policy, cell.seeds, SEED), watch), watch


def _tuned(cell: StudyCell) -> tuple[SimulatedOutcome, Watch, str]:
    """The best size for all workers."""
    scenario = cell.scenario
    tried = {
        size: _watched(cell, PolicySection(name="static", sizes=(size,) * scenario.n_workers))
        for size in uniform_sizes(scenario)
    }
    best = best_size({size: outcome for size, (outcome, _) in tried.items()})
    return (*tried[best], str(best))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = resumable_arguments(__doc__, quick="too small for meaningful figures; shows that it works")
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    stem = "stigmergy-quick" if args.quick else "stigmergy"
    cells = cells_of(args.quick)
    rows, left = run_missing(cells, run, args.out / f"{stem}.csv", args.limit_s, args.jobs)
    rows = of_complete_clusters(cells, rows)
    if left:
        print(f"{left} cells are left; the same command goes on. The page has the clusters that are complete")
    if not any(row["question"] == "scenarios" for row in rows):
        return
    found = figures_of(rows)
    command = f"`python -m benchmarks.studies.clusters.stigmergy{' --quick' * args.quick}`"
    told = f"{command}: {took_s(rows):,.0f} s of one core on {where()}."
    block = f"{told} Simulated.\n\n{blocks(found)}\n"
    update_page(args.out / f"{stem}.md", block)
    draw(args.out / f"{stem}.png", lambda figure: picture(figure, found))
    print(block)
    if args.json:
        args.json.write_text(json.dumps(dataclasses.asdict(found), indent=2) + "\n")


if __name__ == "__main__":
    main()
