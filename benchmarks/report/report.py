"""The report of a grid's folder: report.md, its pictures, and both in one file, report.html. All from the CSV tables.

The same tables give the same bytes, with the same versions of this project and of matplotlib.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

from benchmarks.report import pictures
from benchmarks.report.all_races import RELATIVE_PICTURE, ours, relative
from benchmarks.report.html import page
from benchmarks.report.one_race import PICTURES, UNKNOWN, chapter, picture_name
from benchmarks.report.page import draw, markdown
from benchmarks.suite import scenario, workloads
from benchmarks.suite.contenders import CONTENDERS
from benchmarks.suite.grid import load_grid
from benchmarks.suite.results import CellName, CellResult, Ended
from benchmarks.suite.statistics import FEW_SEEDS, STATIC, Race, contenders_of, races, with_static
from benchmarks.suite.tables import CELLS, read_tables
from benchmarks.suite.tuning import beaten
from dynamix_ps.errors import EnvironmentNotReady, UsageError

TITLE = "Controllers side by side on real BytePS"
SHOWN = 20  # contenders of a race without a result that are named one by one

READING = f"""## How to read this

- **Time to an accuracy**: seconds of training until the accuracy on the test data is first at least this, evaluations
  left out. The accuracy at an evaluation is the mean of it and its two neighbours, and between two the line counts:
  single evaluations scatter by about half a point, and a lucky one should decide nothing. A cell that never gets
  there counts with the limit of its workload, or with the longest time any cell of the same scenario and workload
  needed where that is more. "Reached target" says how many did.
- **Every figure is an interquartile mean over seeds** (of three or fewer, the mean), in brackets the 95 % interval of a
  bootstrap stratified by scenario. Of one scenario with three seeds its ends are about the smallest and the largest
  that was seen, which covers less than 95 %; equal seeds make none, nor does a single one, of one scenario or of any
  among several.
- **t / t_ref** is the ratio of two such means, below 1 is faster, over several scenarios the geometric mean of the
  ratios. **Faster** is 1 - t / t_ref throughout: 50 % faster is half the time, negative is slower.
- **Probability of improvement**: how likely a run of the contender is shorter than one of the reference, all pairs of
  seeds, ties count half (arXiv 2108.13264).
- **`{STATIC}` is tuned afterwards**: of the fixed sizes tried, the one that did best in cells that are reported.
  That is in its favour, and what the other sizes cost is not counted. Where a grid tries them with some of its seeds
  (`static_seeds`), the best of those runs with the rest.
- **Accuracy after a time and after some samples**: those that the first contender to arrive needs for the target, so
  that all are compared on equal terms. A training that has ended keeps its last accuracy. **Final accuracy** is that
  after as many samples as everybody trains on. {UNKNOWN} is before the first evaluation, and for a training that was
  cut off before it got so far; it stands for whatever else is not known, too.
- **Samples to target** counts the cells that got there. The time to the target is about these over the samples per
  second: a contender wins by needing fewer, with a small global batch, or by training faster, which a large one does.
- **Time waiting** is for other workers, mean over workers. **Spread of computing times** is (slowest - fastest) / mean
  over workers, the median over windows.
- **Cells that failed or have no result** are named above and count in no figure: a crash tells nothing about speed.
  Contenders are compared over the seeds that both have; one whose trainings fail owes its figures to the rest. A
  training whose loss became infinite has not failed in this sense: it never arrives.
- **Machine before**: what all its cores together reached at small matrix products just before a cell began. A machine
  that shares its hardware changes by a tenth and more over hours; figures are not corrected by it.
- Raw data: `cells.csv`, `curves.csv`, `plans.csv`, `workers.csv`.
"""


def write_report(folder: Path) -> Path:
    """Read the tables of the folder, write the report beside them, return report.html.

    Raises:
        UsageError: there are no tables, or they are damaged.
        EnvironmentNotReady: the folder cannot be written.
    """
    results = read_tables(folder)
    if not results:
        raise UsageError(f"{folder / CELLS}: no cell has a result; first `dynamix bench run`")
    all_races = races(results)
    try:
        for race in all_races:
            for kind, (_, into) in PICTURES.items():
                _picture(folder / picture_name(race, kind), into, race)
        if among := with_static(all_races):
            draw(folder / RELATIVE_PICTURE, partial(pictures.relative_times, among=among))
        text = report_text(results, _missing(folder, results))
        (folder / "report.md").write_text(text, encoding="utf-8")
        target = folder / "report.html"
        target.write_text(page(text, TITLE, folder), encoding="utf-8")
    except OSError as error:
        raise EnvironmentNotReady(
            f"{error.filename or folder}: cannot be written: {error.strerror or error}"
        ) from error
    return target


def _picture(file: Path, into: Callable[[Any, Race], None], race: Race) -> None:
    draw(file, lambda figure: into(figure, race))


def report_text(results: Sequence[CellResult], missing: Sequence[CellName]) -> str:
    """The whole report in Markdown.

    Args:
        missing: cells of the grid that have no result.
    """
    all_races = races(results)
    parts = [f"# {TITLE}", _what_was_run(results), _troubles(results, missing), ours(all_races), relative(all_races)]
    parts += [chapter(race) for race in all_races]
    return "\n\n".join(part.strip() for part in (*parts, _taking_part(all_races), READING) if part) + "\n"


def _what_was_run(results: Sequence[CellResult]) -> str:
    seeds = sorted({cell.name.seed for cell in results})
    counts = [f"{len(results)} cells, each a training of its own"]
    counts.append(f"{len(seeds)} seed{'s' * (len(seeds) > 1)}")
    networks, emulations = (sorted({getattr(cell, key) for cell in results} - {""}) for key in ("network", "emulation"))
    lines = [f"{', '.join(counts)}. Network: {', '.join(networks)}. Speeds: {'; '.join(emulations)}."]
    if several := _on_several_machines(results):
        lines.append(f"**Not all on one machine; times of several races compare as far as those do.** {several}.")
    if few := _with_few_seeds(results):
        lines.append(f"**Fewer than {FEW_SEEDS} seeds, a first impression and no ground for conclusions: {few}.**")
    replayed, windows = sum(cell.replayed for cell in results), sum(cell.windows for cell in results)
    lines.append(
        f"Given the recorded reports again, a fresh policy makes the same plan in {replayed:,} of {windows:,} windows."
    )
    known = {name: scenario.load_scenario(name).about for name in scenario.shipped()}
    known |= {name: one.about for name, one in workloads.load_workloads().items()}
    names = sorted({cell.name.scenario for cell in results}), sorted({cell.name.workload for cell in results})
    lines.append("\n".join(f"- `{name}`: {known[name]}" for kind in names for name in kind if name in known))
    return "\n\n".join(line for line in lines if line)


def _on_several_machines(results: Sequence[CellResult]) -> str:
    """Which races ran on which machine, where there is more than one; else empty."""
    of_race: dict[str, set[str]] = {}
    for cell in results:
        if cell.machine:
            of_race.setdefault(f"{cell.name.scenario}, {cell.name.workload}", set()).add(cell.machine)
    ran: dict[str, list[str]] = {}
    for race, machines in sorted(of_race.items()):
        ran.setdefault(" and ".join(sorted(machines)), []).append(race)
    if len(set().union(*of_race.values())) < 2:
        return ""
    return ". ".join(f"{machines}: {'; '.join(names)}" for machines, names in sorted(ran.items()))


def _with_few_seeds(results: Sequence[CellResult]) -> str:
    """Who has too few where: `everybody` or names, after the races unless it is so in all of them."""
    all_races = races(results)
    where: dict[str, list[str]] = {}
    for race in all_races:
        few = [f"`{name}`" for name in contenders_of([race]) if len(race.entries[name]) < FEW_SEEDS]
        if few:
            where.setdefault("everybody" if len(few) == len(race.entries) else ", ".join(few), []).append(race.name)
    return "; ".join(
        who if len(names) == len(all_races) else f"{who} ({' and '.join(names)})" for who, names in where.items()
    )


def _troubles(results: Sequence[CellResult], missing: Sequence[CellName]) -> str:
    unfinished = [cell for cell in results if cell.ended != "done"]
    lines = _by_seeds((cell.name, f"{cell.ended}: {_quoted(cell.reason)}") for cell in unfinished)
    unknown = _by_seeds((name, "no result") for name in missing)
    lines += unknown[:SHOWN]
    if len(unknown) > SHOWN:
        lines.append(f"- and no result of {len(unknown) - SHOWN} others")
    if not lines:
        return ""
    counts = [f"{sum(cell.ended == ended for cell in unfinished)} {ended}" for ended in get_args(Ended)[1:]]
    counts.append(f"{len(missing)} without a result")
    return f"## Cells that are not done\n\n{', '.join(counts)}.\n\n" + "\n".join(lines)


def _by_seeds(cells: Iterable[tuple[CellName, str]]) -> list[str]:
    """One line for all seeds of a contender in a race of which there is the same to say."""
    found: dict[tuple[str, str, str, str], list[int]] = {}
    for name, what in cells:
        found.setdefault((name.scenario, name.workload, name.contender, what), []).append(name.seed)
    return [
        f"- `{race}--{task}--{contender}` (seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}) {what}"
        for (race, task, contender, what), seeds in found.items()
    ]


def _quoted(text: str) -> str:
    return "`" + " ".join(text.replace("`", "'").split()) + "`"


def _taking_part(all_races: Sequence[Race]) -> str:
    if not all_races:
        return ""
    tried = max(len(race.sizes) for race in all_races)

    def row(name: str) -> dict[str, str]:
        one = CONTENDERS.get(name)
        sizes = f" ({tried} sizes)" if name == STATIC else ""
        about = (one.what, one.paper, one.tuning + sizes) if one else (UNKNOWN,) * 3
        return dict(zip(("contender", "what it is", "origin", "tuning effort"), (f"`{name}`", *about), strict=True))

    return f"## Who takes part, and what tuning it got\n\n{markdown([row(name) for name in contenders_of(all_races)])}"


def _missing(folder: Path, results: Sequence[CellResult]) -> list[CellName]:
    """Cells of the folder's grid, if it is there, that have no result and need one."""
    file = folder / "grid.yaml"
    if not file.exists():
        return []
    grid = load_grid(file)
    done = {cell.name for cell in results} | beaten(grid, results)
    return [name for name in grid.cells() if name not in done]
