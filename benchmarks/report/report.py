"""The report of a grid from its CSV tables: report.md, its pictures, and both in one file, report.html.

The same tables make the same bytes, with the same versions of this project, matplotlib and Pillow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.report import pictures
from benchmarks.report.all_races import RELATIVE_PICTURE, against_every_rival, relative
from benchmarks.report.comparison import Comparison, comparisons
from benchmarks.report.grid_description import first_impression, not_done, what_ran, who_takes_part
from benchmarks.report.headline import HEADLINE_PICTURE, headline
from benchmarks.report.html import page
from benchmarks.report.one_race import PICTURES, UNKNOWN, picture_name, race_section
from benchmarks.report.page import draw
from benchmarks.suite.grid import load_grid
from benchmarks.suite.results import CellName, CellResult
from benchmarks.suite.statistics import STATIC, Race, races, with_static
from benchmarks.suite.tables import CELLS, read_tables
from benchmarks.suite.tuning import beaten
from dynamix_ps.errors import EnvironmentNotReady, UsageError

TITLE = "Controllers side by side on real BytePS"

READING = f"""## How to read this

- **Time to a target** is the training time until the test accuracy, or for a language model the bits per byte, first
  reaches it, without the evaluations. The value at an evaluation is the mean of it and its two neighbours, and a line
  joins two evaluations: single accuracies scatter by about half a point. A cell that never gets there counts with the
  limit of its workload, or with the longest time that any cell of the same scenario and workload needs, where that is
  more. "Reached target" says how many cells did.
- **Times are geometric means over seeds**, other figures means. The brackets hold the 95 % interval of Student's t over
  seeds. Scenarios share their seeds, so over several of them the unit is a seed in all. There is no interval where a
  scenario has fewer than three seeds, or where all seeds are equal.
- **t / t_ref** is the geometric mean of ratios of two runs with the same seed: below 1 is faster. Over several
  scenarios it is the geometric mean of theirs. **Faster** is 1 - t / t_ref: 50 % faster is half the time, negative is
  slower.
- **Clearly faster or slower**: the interval of t / t_ref excludes 1. **Within the noise**: it does not.
- **Probability of improvement**: how likely a run of the contender is shorter than one of the reference, over all pairs
  of seeds; ties count half (arXiv 2108.13264).
- **`{STATIC}` is tuned afterwards**: it is the best of the fixed sizes tried, chosen by the cells that are reported.
  That is in its favour, and the cost of trying the other sizes does not count. Where a grid tries sizes with some of
  its seeds only (`static_seeds`), the best of those runs with the other seeds.
- **Values after a time and after some samples** take what the first contender to arrive needs for the target, so
  that all are compared on equal terms. A training that has ended keeps its last value. The **final value** is that
  after as many samples as everybody trains on. {UNKNOWN} stands for a time before the first evaluation, for a
  training that was cut off earlier, and for anything else that is not known.
- **Samples to target** counts the cells that get there. The time to the target is about these divided by the samples
  per second: a contender wins by needing fewer samples (small global batch) or by training faster (large one).
- **Time waiting** is time spent on other workers, mean over workers. **Spread of computing times** is (slowest -
  fastest) / mean over workers, median over windows.
- **Cells that failed or have no result** stand at the end and count in no figure: a crash tells nothing about speed.
  Contenders are compared over the seeds that both have. A training whose loss became infinite has not failed in this
  sense: it never arrives.
- **Machine before** is what all cores together reach at small matrix products just before a cell begins. A machine that
  shares its hardware changes by a tenth and more over hours; figures are not corrected for it.
- The raw data are `cells.csv`, `curves.csv`, `plans.csv` and `workers.csv` in the folder of the grid.
"""


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write the report of the grid in `folder` and return report.html.

    Args:
        out: where the pages and pictures go, made if need be; by default beside the tables.

    Raises:
        UsageError: there are no tables, or they are damaged.
        EnvironmentNotReady: the pages cannot be written.
    """
    results = read_tables(folder)
    if not results:
        raise UsageError(f"{folder / CELLS}: no cell has a result; first `dynamix bench run`")
    all_races = races(results)
    found = comparisons(all_races)
    pages = out or folder
    target = pages / "report.html"
    try:
        pages.mkdir(parents=True, exist_ok=True)
        _draw_pictures(pages, all_races, found)
        text = _text(results, missing_cells(folder, results), all_races, found)
        (pages / "report.md").write_text(text, encoding="utf-8")
        target.write_text(page(text, TITLE, pages), encoding="utf-8")
    except OSError as error:
        raise EnvironmentNotReady(
            f"{error.filename or pages}: cannot be written: {error.strerror or error}; give another folder by --out"
        ) from error
    return target


def report_text(results: Sequence[CellResult], missing: Sequence[CellName]) -> str:
    """The whole report in Markdown.

    Args:
        missing: cells of the grid that have no result.
    """
    all_races = races(results)
    return _text(results, missing, all_races, comparisons(all_races))


def _draw_pictures(pages: Path, all_races: Sequence[Race], found: Sequence[Comparison]) -> None:
    if found:
        draw(pages / HEADLINE_PICTURE, partial(pictures.headline, found=found))
    if among := with_static(all_races):
        draw(pages / RELATIVE_PICTURE, partial(pictures.relative_times, among=among))
    for race in all_races:
        for kind, (_, into) in PICTURES.items():
            _draw_race(pages / picture_name(race, kind), into, race)


def _draw_race(file: Path, into: Callable[[Any, Race], None], race: Race) -> None:
    draw(file, lambda figure: into(figure, race))


def _text(
    results: Sequence[CellResult],
    missing: Sequence[CellName],
    all_races: Sequence[Race],
    found: Sequence[Comparison],
) -> str:
    def parts() -> Iterator[str]:
        yield f"# {TITLE}"
        yield headline(all_races, found)
        yield first_impression(all_races)
        yield against_every_rival(all_races, found)
        yield relative(all_races)
        yield from (race_section(race) for race in all_races)
        yield what_ran(results)
        yield who_takes_part(all_races)
        yield READING
        yield not_done(results, missing)

    return "\n\n".join(part.strip() for part in parts() if part) + "\n"


def missing_cells(folder: Path, results: Sequence[CellResult]) -> list[CellName]:
    """Cells of the folder's grid, if it is there, that have no result and need one."""
    file = folder / "grid.yaml"
    if not file.exists():
        return []
    grid = load_grid(file)
    done = {cell.name for cell in results} | beaten(grid, results)
    return [name for name in grid.cells() if name not in done]
