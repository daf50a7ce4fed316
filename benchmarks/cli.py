"""`dynamix bench`: controllers side by side on real BytePS; run a grid, report, list, clean up."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.text import Text

from dynamix_ps.errors import INTERRUPTED_EXIT_CODE, EnvironmentNotReady, JobFailed, UsageError
from dynamix_ps.launch.job.interrupts import Interrupts
from dynamix_ps.terminal import make_console, print_line, printable, progress_bar

if TYPE_CHECKING:
    from benchmarks.suite.grid import Grid
    from benchmarks.suite.grid_folder import GridFolder
    from benchmarks.suite.results import CellName, CellResult
    from benchmarks.suite.runner import CellRunner

_RUNS = Path("bench-runs")
_FOLDER = click.Path(path_type=Path, file_okay=False)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Controllers side by side: real training on real BytePS, emulated heterogeneity.

    A grid lists scenarios, workloads, contenders and seeds; each combination is a cell. `dynamix bench list` shows
    what ships.
    """


@command.command()
@click.argument("grid")
@click.option("-o", "--out", type=_FOLDER, help="Folder of results.  [default: bench-runs/NAME of the grid]")
@click.option("--only", multiple=True, metavar="PATTERN", help="Cells with such a name; several: any of them.")
def run(grid: str, out: Path | None, only: tuple[str, ...]) -> int:
    """Run the cells of GRID, then report.

    GRID is the name of one that ships, or a YAML file. Cells that have a result are not run again, those that failed
    are. Ctrl-C ends the cell that runs and leaves it for the next time; the same command goes on from there. While
    another grid runs on this machine, it waits for its end.

    \b
    Examples:
      dynamix bench run quick
      dynamix bench run full --only 'h-level-4--*--ppo--*' --only 'h-level-4--*--static-*'
    """
    _need_packages()
    from benchmarks.suite.grid import load_grid
    from benchmarks.suite.grid_folder import GridFolder
    from benchmarks.suite.machine_lock import exclusive_machine
    from benchmarks.suite.runner import CellRunner

    chosen = load_grid(grid)
    folder = GridFolder(out or _RUNS / chosen.name)
    cells = _matching(chosen, only)
    console = make_console()
    with (
        folder.held(
            lambda: _say(console, f"{folder.path}: another `bench run` works here or is about to end; waiting")
        ) as kept_folder,
        exclusive_machine(
            lambda: _say(console, "another grid runs on this machine, and two would slow each other down; waiting")
        ) as kept_machine,
        Interrupts() as interrupts,
    ):
        folder.adopt(chosen)
        todo = [cell for cell in cells if (result := folder.result(cell)) is None or result.ended == "failed"]
        _say(console, f"{folder.path}: {len(cells)} cells, {len(cells) - len(todo)} done, {len(todo)} to run")
        with progress_bar(console, by_hand=True) as bar:
            runner = CellRunner(folder, (kept_folder, kept_machine), interrupts, on_tick=bar.refresh)
            task = bar.add_task("", total=len(todo))
            failed = _run_cells(todo, runner, folder, chosen, _CellProgress(console, bar, task))
    if interrupts.count or failed:
        _remove_leftovers(console)
    if interrupts.count:
        _say(console, f"interrupted by {interrupts.first}; the same command goes on from here")
        return INTERRUPTED_EXIT_CODE
    _report(folder, console)
    if failed:
        raise JobFailed(
            f"{len(failed)} of {len(cells)} cells failed, the same command tries them again:\n"
            + "\n".join(f"{cell}: {folder.log_file(cell)}" for cell in failed)
        )
    return 0


class _CellProgress:
    """What the user sees of the cells: a bar, and a line for each cell that ends."""

    def __init__(self, console: Console, bar: Progress, task: TaskID) -> None:
        self._console, self._bar, self._task = console, bar, task

    def begins(self, cell: CellName) -> None:
        self._bar.update(self._task, description=str(cell))
        self._bar.refresh()

    def passes(self) -> None:
        """A cell that need not run."""
        task = self._bar.tasks[self._task]
        self._bar.update(self._task, total=(task.total or 1) - 1)

    def ended(self, result: CellResult, folder: GridFolder) -> None:
        from benchmarks.suite.overview import outcome
        from benchmarks.suite.runner import tail

        self._bar.advance(self._task)
        task = self._bar.tasks[self._task]
        left = f", about {task.time_remaining / 60:.0f} min left" if task.time_remaining else ""
        _say(self._console, f"[{task.completed:.0f}/{task.total:.0f}] {result.name}: {outcome(result)}{left}")
        if result.ended == "failed":
            log = folder.log_file(result.name)
            _say(self._console, f"  {result.reason}; the end of {log}:")
            for line in tail(log):
                print_line(self._console, Text("    ") + printable(line))


def _run_cells(
    todo: Sequence[CellName], runner: CellRunner, folder: GridFolder, grid: Grid, progress: _CellProgress
) -> list[CellName]:
    """Run the cells until the end or an interrupt, without sizes that lost the tuning; gives those that failed."""
    from benchmarks.suite.workloads import load_workload

    failed = []
    for cell in todo:
        if cell in folder.beaten(grid):
            progress.passes()
            continue
        progress.begins(cell)
        result = runner.run(cell, load_workload(cell.workload))
        if result is None:
            break
        progress.ended(result, folder)
        if result.ended == "failed":
            failed.append(cell)
    return failed


@command.command()
@click.argument("folder", type=_FOLDER)
@click.option("-o", "--out", type=_FOLDER, help="Folder of the pages and pictures.  [default: FOLDER]")
def report(folder: Path, out: Path | None) -> None:
    """Make the report of the results in FOLDER: report.html, report.md and pictures."""
    _need_packages()
    from benchmarks.suite.grid_folder import GridFolder

    _report(GridFolder(folder), make_console(), out)


@command.command("list")
@click.argument("what", required=False)
def list_(what: str | None) -> None:
    """Show what ships, or how far a grid has come.

    WHAT is a grid or a folder of results.
    """
    _need_packages()
    from benchmarks.suite import overview
    from benchmarks.suite.grid import load_grid
    from benchmarks.suite.grid_folder import GridFolder

    console = make_console()
    if what is None:
        for table in overview.shipped_tables():
            console.print(table)
        return
    if Path(what).is_dir():
        folder = GridFolder(Path(what))
        grid = folder.grid()
    else:
        grid = load_grid(what)
        folder = GridFolder(_RUNS / grid.name)
    console.print(overview.cells_table(grid, folder))


@command.command()
def clean() -> None:
    """Remove what killed cells left behind.

    Hosts of test beds and their processes; processes, shared memory and control groups of runs.
    """
    from benchmarks.suite.cleanup import remove_leftovers

    click.echo("\n".join(f"removed {line}" for line in remove_leftovers()) or "nothing was left over")


def _report(folder: GridFolder, console: Console, out: Path | None = None) -> None:
    from benchmarks.report.report import write_report
    from benchmarks.suite.tables import export

    export(folder.path)
    _say(console, f"report: {write_report(folder.path, out)}")


def _matching(grid: Grid, patterns: Sequence[str]) -> list[CellName]:
    """The cells whose name one of the patterns fits; all without patterns. Raises UsageError where there are none."""
    cells = grid.cells()
    chosen = [cell for cell in cells if not patterns or any(fnmatchcase(str(cell), one) for one in patterns)]
    if not chosen:
        raise UsageError(
            f"--only {' '.join(patterns)}: fits no cell of grid {grid.name}; {cells[0]} is one, for example"
        )
    return chosen


def _remove_leftovers(console: Console) -> None:
    """Clean up after cells that may have been killed. What cannot be removed is a warning, not a failure."""
    from benchmarks.suite.cleanup import remove_leftovers

    try:
        for line in remove_leftovers():
            _say(console, f"removed {line}")
    except EnvironmentNotReady as error:
        _say(console, f"warning: {error}")


def _need_packages() -> None:
    """Raises EnvironmentNotReady where a package is missing that only benchmarks need."""
    missing = [name for name in ("torch", "matplotlib", "sklearn") if find_spec(name) is None]
    if missing:
        raise EnvironmentNotReady(f"not installed: {', '.join(missing)}; pip install 'dynamix-ps[workloads,plots]'")


def _say(console: Console, line: str) -> None:
    print_line(console, Text(line))
