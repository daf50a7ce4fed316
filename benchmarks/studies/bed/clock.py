"""Whether rehearsals come to the clock part of real BytePS: the same contenders, seeds and scenarios, both ways.

    python -m benchmarks.studies.bed.clock [--json FILE] [--limit-s SECONDS] [--quick]

Three scenarios: uneven workers, a slow link, and quotas that change. In each of them four contenders train for the same
time on real BytePS, with five seeds: about 75 minutes of a machine that does nothing else. Then the same runs are
rehearsed: about 80 core minutes, which other work may disturb. The cluster of a rehearsal comes from runs with two
fixed sizes of the same session (`FITTED`), and from nothing else. What is compared is the clock part: seconds per
sample of a contender over those of the fixed size, within the same span of training
(benchmarks/studies/bed/clock_answers.py).

Every run is kept as soon as it ends: those on the bed as cells of the suite in bed-clock/, whose tables are made from
them, the rehearsed ones as rows of bed-clock/rehearsed.csv. The same command goes on from there, runs those again that
told no clock, and renews the page. After `--limit-s` no run begins. Delete the folder to measure anew. `--quick` runs
one seed of two contenders over a few seconds, to show that it works, and keeps them in bed-clock-quick/.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report.page import markdown, update_page
from benchmarks.studies.bed.cells import machines, run_on_bed
from benchmarks.studies.bed.clock_answers import Agreement, Clocks, Span, agreements, table_of
from benchmarks.studies.bed.clock_cell import MODEL, WORKLOAD, command_of, contender_of, workload_of
from benchmarks.studies.rehearsed_cells import Cell, Name, Table, Workplace, cell_of, outcome_of, run_missing
from benchmarks.studies.study import resumable_arguments
from benchmarks.suite.grid_folder import GridFolder
from benchmarks.suite.results import CellName, CellResult, CurvePoint
from benchmarks.suite.scenario import load_scenario
from benchmarks.suite.simulated import CoreTimes, computing_times, core_times, median_speed, simulated
from dynamix_ps.errors import INTERRUPTED_EXIT_CODE
from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.rehearsal.outcome import Evaluated
from dynamix_ps.sim.scenario.load import Scenario
from dynamix_ps.terminal import make_console, progress_bar

REFERENCE, OTHER_SIZE = "static-64", "static-256"
UNEVEN = "h-level-4"  # whose fixed sizes tell the times of a core where links are not limited
FITTED = (REFERENCE, OTHER_SIZE)


@dataclass(frozen=True, slots=True)
class Check:
    """What is compared."""

    stem: str  # of the folder and the page
    scenarios: tuple[str, ...]
    contenders: tuple[str, ...]
    seeds: tuple[int, ...]
    span: Span

    def cells(self) -> tuple[CellName, ...]:
        """In the order in which they run: seed by seed, each beginning with another contender."""
        found = []
        for index, seed in enumerate(self.seeds):
            turn = self.contenders[index % len(self.contenders) :] + self.contenders[: index % len(self.contenders)]
            for scenario in self.scenarios:
                sizes = (OTHER_SIZE,) if scenario in self.fitted_in() else ()
                found += [CellName(scenario, WORKLOAD, name, seed) for name in (*turn, *sizes)]
        return tuple(found)

    def clock_of(self, curve: Sequence[CurvePoint | Evaluated]) -> float | None:
        """Seconds per sample within the span; None if the training ended before."""
        return self.span.seconds_per_sample([(one.time_s, one.samples) for one in curve])

    def fitted_in(self) -> set[str]:
        """Scenarios whose fixed sizes tell the times of a core."""
        return {name if load_scenario(name).needs_namespaces else UNEVEN for name in self.scenarios}


FULL = Check(
    "bed-clock",
    scenarios=(UNEVEN, "slow-link", "hl-schedule"),
    contenders=(REFERENCE, "goodput", MODEL, "ppo"),
    seeds=(1, 2, 3, 4, 5),
    span=Span(5.0, 45.0),  # `hl-schedule` begins again after 40 s
)
QUICK = Check("bed-clock-quick", (UNEVEN,), (REFERENCE, MODEL), (1,), Span(2.0, 10.0))


def main(arguments: Sequence[str] | None = None) -> int:
    return exit_code_of(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    parser = resumable_arguments(__doc__, quick="too small for meaningful figures; shows that it works")
    args = parser.parse_args(arguments)
    check, console = QUICK if args.quick else FULL, make_console()
    deadline_s, folder = time.monotonic() + args.limit_s, GridFolder(args.out / check.stem)
    results, interrupted = measure(check, folder, deadline_s)
    left = len(check.cells()) - len(results)
    rehearsed: Clocks = {}
    if not left:
        rehearsed, left = rehearse(check, results, Table(folder.path / "rehearsed.csv"), args.jobs, deadline_s)
    measured = {name: clock for name, one in results.items() if (clock := check.clock_of(one.curve)) is not None}
    found = agreements(measured, rehearsed, check.scenarios, check.contenders, REFERENCE)
    if found:
        console.print(f"page: {write_page(args.out, check, found, results)}", highlight=False)
    if args.json:
        answers = [dataclasses.asdict(one) | {"verdict": one.verdict} for one in found]
        args.json.write_text(json.dumps({"left": left, "answers": answers}, indent=2) + "\n")
    if left:
        console.print(f"{left} runs are left; the same command goes on", highlight=False)
    return INTERRUPTED_EXIT_CODE if interrupted else 0


def measure(check: Check, folder: GridFolder, deadline_s: float) -> tuple[dict[CellName, CellResult], bool]:
    """Run what is missing on the bed. Returns the results that tell a clock, and whether somebody interrupted.

    They come from the tables, so they are the same where only these are left.

    Args:
        deadline_s: begin no cell after this moment of the monotonic clock.

    Raises JobFailed if a cell told no clock: it failed, diverged or was too slow.
    """
    until_s = check.span.until_s
    return run_on_bed(
        check.cells(),
        folder,
        workload_of(until_s),
        lambda cell, out: command_of(cell, out, until_s),
        lambda result: check.clock_of(result.curve),
        deadline_s,
    )


def rehearse(
    check: Check, results: Mapping[CellName, CellResult], table: Table, jobs: int, deadline_s: float
) -> tuple[Clocks, int]:
    """Rehearse what is missing. Returns seconds per sample, and how many runs are left."""
    with tempfile.TemporaryDirectory(prefix="dynamix-") as folder, progress_bar(make_console()) as bar:
        cells = rehearsals(check, list(results.values()), Path(folder))
        task = bar.add_task("rehearsed runs", total=len(cells))
        limit_s = deadline_s - time.monotonic()
        left = run_missing(cells, table, jobs, limit_s, lambda done: bar.update(task, completed=done))
        return clocks_of(check, table, cells), left


def clocks_of(check: Check, table: Table, cells: Sequence[Cell]) -> Clocks:
    """Seconds per sample of those that have been rehearsed."""
    curves = {name: outcome_of(row).curve for name, row in table.rows(cells).items()}
    clocks = {_bed_name(name): check.clock_of(curve) for name, curve in curves.items()}
    return {name: clock for name, clock in clocks.items() if clock is not None}


def rehearsals(check: Check, results: Sequence[CellResult], folder: Path) -> list[Cell]:
    """The runs to compare, on clusters whose times come from fixed sizes. Policy files go into the folder."""
    workload = workload_of(check.span.until_s)
    chosen = {name: contender_of(name, folder) for name in check.contenders}
    places = {
        name: Workplace(workload, cluster_of(check, name, results), (workload.batch,) * len(load_scenario(name).cores))
        for name in check.scenarios
    }
    return [
        cell_of(Name(WORKLOAD, name.scenario, name.contender, name.seed), places[name.scenario], chosen[name.contender])
        for name in check.cells()
        if name.contender in chosen
    ]


def cluster_of(check: Check, scenario: str, results: Sequence[CellResult]) -> Scenario:
    """The scenario in the simulator, at the speed that the machine had in it."""
    speed = median_speed(one for one in results if one.name.scenario == scenario)
    return simulated(load_scenario(scenario), core_of(check, scenario, results).at(speed), check.span.until_s)


def core_of(check: Check, scenario: str, results: Sequence[CellResult]) -> CoreTimes:
    """From fixed sizes: computing in this scenario if its links are limited, else iterations of uneven workers."""
    bed = load_scenario(scenario)
    where = scenario if bed.needs_namespaces else UNEVEN
    fixed = [check.span.steady(one) for one in results if one.name.scenario == where and one.name.contender in FITTED]
    if bed.needs_namespaces:
        return computing_times(fixed, bed.cores)
    return core_times(fixed, {UNEVEN: load_scenario(UNEVEN).cores})


def _bed_name(name: Name) -> CellName:
    return CellName(name.scenario, name.workload, name.contender, name.seed)


def write_page(folder: Path, check: Check, found: Sequence[Agreement], results: Mapping[CellName, CellResult]) -> Path:
    """Renew the figures of the page. Raises UsageError if it cannot be written."""
    page = folder / f"{check.stem}.md"
    span = check.span
    told = (
        f"`python -m benchmarks.studies.bed.clock{' --quick' * (check is QUICK)}`: {len(results)} of "
        f"{len(check.cells())} runs on {machines(results)}. "
        f"Seconds per sample over those of `{REFERENCE}`, from {span.from_s:g} to {span.until_s:g} s of training."
    )
    update_page(page, f"{told}\n\n{markdown(table_of(found))}\n")
    return page


if __name__ == "__main__":
    sys.exit(main())
