"""Pairs of contenders: seconds per sample and time to the target, paired by seed, against the bars.

    python -m benchmarks.report.paired FOLDER --out benchmarks/results

FOLDER has the name of a grid in PAGES, and holds its tables, which need not be complete. The figures of that page in
benchmarks/results are replaced.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.report.one_race import UNKNOWN, interval
from benchmarks.report.page import RESULTS, markdown, update_page
from benchmarks.suite.contenders import BY_HAND, DDP, DDP_BY_HAND
from benchmarks.suite.intervals import smallest_difference
from benchmarks.suite.results import CellResult
from benchmarks.suite.statistics import (
    FEW_SEEDS,
    OURS,
    STATIC,
    Race,
    contenders_of,
    difference,
    final_value,
    global_batch,
    log_ratios,
    races,
    ratio,
    relative_time,
    seconds_per_sample,
)
from benchmarks.suite.tables import read_tables
from dynamix_ps.errors import UsageError
from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.sim.contest.comparison import Estimate


class Asked(NamedTuple):
    """Two contenders of a page, and the bar on the ratio of their seconds per sample."""

    contender: str
    reference: str
    bar: float | None = None


PAGES = {
    "beside-ddp": (
        Asked(OURS, DDP, 0.50),
        Asked(OURS, DDP_BY_HAND, 0.90),
        Asked(OURS, BY_HAND),
        Asked(BY_HAND, DDP_BY_HAND),
        Asked(DDP_BY_HAND, DDP),
    ),
    "wire": (Asked("static-64-wire-auto", STATIC, 0.75), Asked("model-wire-auto", "model", 0.75)),
}
Row = dict[str, str]


def main() -> int:
    return exit_code_of(_main)


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER", help="of the page")
    args = parser.parse_args()
    name = args.folder.name
    if name not in PAGES:
        raise UsageError(f"{args.folder}: expected a folder named {', '.join(PAGES)}")
    update_page(args.out / f"{name}.md", figures(read_tables(args.folder), name, str(args.folder)))
    return 0


def figures(cells: Iterable[CellResult], page: str, named: str) -> str:
    """One block in Markdown: every pair that this page asks for, and every contender.

    Raises:
        UsageError: no pair has a seed in common; `named` is what the cells were read from.
    """
    among = races(cells)
    pairs = [row for race in among for row in _pairs(race, PAGES[page])]
    if not pairs:
        raise UsageError(f"{named}: no two of the contenders have a seed in common; `dynamix bench run {page}` first")
    contenders = [
        {"scenario": race.scenario} | _contender(race, name) for race in among for name in contenders_of([race])
    ]
    return (
        f"`python -m benchmarks.report.paired {named} --out benchmarks/results`.\n\n"
        f"{markdown(pairs)}\n\n{markdown(contenders)}\n\n"
    )


def verdict(one: Estimate | None, bar: float | None, seeds: int) -> str:
    """Whether the figure is at most the bar, and whether its interval says the same. Few seeds decide nothing."""
    if one is None or bar is None:
        return ""
    said = "met" if one.value <= bar else "missed"
    decided = seeds >= FEW_SEEDS and (one.high <= bar or one.low > bar)
    return f"**{said}**" if decided else f"{said}, not decided"


def _pairs(race: Race, asked: Iterable[Asked]) -> Iterator[Row]:
    for contender, reference, bar in asked:
        logs = log_ratios(race, contender, reference, seconds_per_sample)
        if not logs:
            continue
        clock = ratio(race, contender, reference, seconds_per_sample)
        shows = smallest_difference([logs])
        yield {
            "scenario": race.scenario,
            "who over whom": f"`{contender}` over `{reference}`",
            "seconds per sample": interval(clock, "{:.3f}"),
            "at most": "" if bar is None else f"{bar:.2f}",
            "verdict": verdict(clock, bar, len(logs)),
            "so many seeds show": f"{100 * shows:.0f} %" if len(logs) >= FEW_SEEDS else UNKNOWN,
            f"s to {race.metric.in_short(race.target)}": interval(relative_time([race], contender, reference)),
            f"final {race.metric.title}, difference": interval(
                difference(race, contender, reference, final_value), "{:+.2f}", race.metric.scale
            ),
            "seeds": " ".join(map(str, logs)),
        }


def _contender(race: Race, name: str) -> Row:
    entries: Sequence[CellResult] = list(race.entries[name].values())
    machines = sorted({f"{one.machine}" for one in entries})
    return {
        "contender": f"`{name}`",
        "\u00b5s per sample": interval(race.over_seeds(name, seconds_per_sample), "{:.0f}", 1e6),
        "by seed": " ".join(
            UNKNOWN if (clock := seconds_per_sample(one)) is None else f"{1e6 * clock:.0f}" for one in entries
        ),
        "samples of an iteration": interval(race.over_seeds(name, global_batch), "{:.0f}"),
        f"final {race.metric.title}": interval(race.over_seeds(name, final_value), race.metric.form, race.metric.scale),
        "machine": ", ".join(machines),
    }


if __name__ == "__main__":
    raise SystemExit(main())
