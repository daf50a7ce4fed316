"""What a report says about its grid in Markdown: what ran where, how many seeds, who takes part, what is not done."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import get_args

from benchmarks.report.one_race import UNKNOWN
from benchmarks.report.page import markdown
from benchmarks.suite import scenario, workloads
from benchmarks.suite.contenders import CONTENDERS
from benchmarks.suite.results import CellName, CellResult, Ended
from benchmarks.suite.statistics import FEW_SEEDS, STATIC, Race, contenders_of

LISTED = 20  # contenders without a result that are named; of the others their number


def first_impression(all_races: Sequence[Race]) -> str:
    """A warning that names who has too few seeds, and in which races unless it is so in all; empty without any."""
    where: dict[str, list[str]] = {}
    for race in all_races:
        few = [f"`{name}`" for name in contenders_of([race]) if len(race.entries[name]) < FEW_SEEDS]
        if few:
            where.setdefault("everybody" if len(few) == len(race.entries) else ", ".join(few), []).append(race.name)
    named = "; ".join(
        who if len(names) == len(all_races) else f"{who} ({' and '.join(names)})" for who, names in where.items()
    )
    return f"**Fewer than {FEW_SEEDS} seeds, a first impression and no ground for conclusions: {named}.**" * bool(named)


def what_ran(results: Sequence[CellResult]) -> str:
    """Cells, seeds, machines, emulation, replayed decisions, and what each scenario and workload is."""
    seeds = sorted({cell.name.seed for cell in results})
    counts = f"{len(results)} cells, each a training of its own, {len(seeds)} seed{'s' * (len(seeds) > 1)}"
    networks, emulations = (sorted({getattr(cell, key) for cell in results} - {""}) for key in ("network", "emulation"))
    replayed, windows = sum(cell.replayed for cell in results), sum(cell.windows for cell in results)
    lines = [
        f"{counts}. Network: {', '.join(networks)}. Speeds: {'; '.join(emulations)}.",
        _machines(results),
        f"Given the recorded reports again, a fresh policy makes the same plan in {replayed:,} of {windows:,} windows.",
        _scenarios_and_workloads(results),
    ]
    return "## What ran\n\n" + "\n\n".join(line for line in lines if line)


def _machines(results: Sequence[CellResult]) -> str:
    """Which races ran on which machine, where there is more than one; else empty."""
    of_race: dict[str, set[str]] = {}
    for cell in results:
        if cell.machine:
            of_race.setdefault(f"{cell.name.scenario}, {cell.name.workload}", set()).add(cell.machine)
    if len(set().union(*of_race.values())) < 2:
        return ""
    ran: dict[str, list[str]] = {}
    for race, machines in sorted(of_race.items()):
        ran.setdefault(" and ".join(sorted(machines)), []).append(race)
    lines = ". ".join(f"{machines}: {'; '.join(names)}" for machines, names in sorted(ran.items()))
    return f"**Several machines: times of different scenarios compare only as far as the machines do.** {lines}."


def _scenarios_and_workloads(results: Sequence[CellResult]) -> str:
    known = {name: scenario.load_scenario(name).about for name in scenario.shipped()}
    known |= {name: one.about for name, one in workloads.load_workloads().items()}
    names = sorted({cell.name.scenario for cell in results}) + sorted({cell.name.workload for cell in results})
    return "\n".join(f"- `{name}`: {known[name]}" for name in names if name in known)


def who_takes_part(all_races: Sequence[Race]) -> str:
    """Every contender with its origin and the tuning it got; empty where no cell ended."""
    if not all_races:
        return ""
    tried = max(len(race.sizes) for race in all_races)

    def row(name: str) -> dict[str, str]:
        one = CONTENDERS.get(name)
        sizes = f" ({tried} sizes)" if name == STATIC else ""
        about = (one.what, one.paper, one.tuning + sizes) if one else (UNKNOWN,) * 3
        return dict(zip(("contender", "what it is", "origin", "tuning effort"), (f"`{name}`", *about), strict=True))

    return f"## Who takes part, and what tuning it got\n\n{markdown([row(name) for name in contenders_of(all_races)])}"


def not_done(results: Sequence[CellResult], missing: Sequence[CellName]) -> str:
    """One table of the cells that did not end, by scenario and reason; empty where all are done.

    Args:
        missing: cells of the grid that have no result.
    """
    unfinished = [cell for cell in results if cell.ended != "done"]
    if not unfinished and not missing:
        return ""
    counts = [f"{sum(cell.ended == ended for cell in unfinished)} {ended}" for ended in get_args(Ended)[1:]]
    counts.append(f"{len(missing)} without a result")
    rows = _rows((cell.name, f"{cell.ended}: {_quoted(cell.reason)}") for cell in unfinished)
    rows += _rows((name, "no result") for name in missing)
    return f"## Cells that are not done\n\n{', '.join(counts)}.\n\n{markdown(rows)}"


def _rows(cells: Iterable[tuple[CellName, str]]) -> list[dict[str, str]]:
    """One row for all contenders and seeds of a race of which there is the same to say."""
    found: dict[tuple[str, str, str], dict[str, list[int]]] = {}
    for name, what in cells:
        race = found.setdefault((name.scenario, name.workload, what), {})
        race.setdefault(name.contender, []).append(name.seed)
    return [
        {"scenario, workload": f"{scenario}, {workload}", "what happened": what, "contender: seeds": _seeds(of)}
        for (scenario, workload, what), of in found.items()
    ]


def _seeds(by_contender: dict[str, list[int]]) -> str:
    lines = [f"`{name}`: {', '.join(map(str, seeds))}" for name, seeds in by_contender.items()]
    others = len(lines) - LISTED
    return "; ".join(lines[:LISTED]) + f"; and {others} others" * (others > 0)


def _quoted(text: str) -> str:
    """As code within a cell of a table, in which a bar would begin the next cell."""
    return "`" + " ".join(text.replace("`", "'").replace("|", "\\|").split()) + "`"
