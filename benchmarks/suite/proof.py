"""What was hoped for beside what a grid measured: our agent against its strongest rivals, scenario by scenario.

    python -m benchmarks.suite.proof FOLDER --out docs/results

FOLDER holds the tables of a grid. The figures of docs/results/proof.md are replaced.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.page import markdown
from benchmarks.suite.chapter import UNKNOWN, interval
from benchmarks.suite.grid import load_grid
from benchmarks.suite.grid_page import renew
from benchmarks.suite.statistics import OURS, STATIC, Race, difference, final_accuracy, relative_time

RIVALS = (STATIC, "pid", "goodput")
HALF = 0.54  # of static's time, the gain that DYNAMIX reports (arXiv 2510.08522, abstract)
LOWER = 0.003  # what final accuracy may lie below static's, as scatter (chosen by us)


def figures(among: Sequence[Race], folder: str) -> str:
    """In Markdown: a line per scenario, those in which speeds differ much or change or a link is slow first."""
    demanding = load_grid("proof").scenarios
    hard = [race for race in among if race.scenario in demanding]
    easy = [race for race in among if race.scenario not in demanding]
    rows = [_row(race.scenario, [race]) for race in hard]
    rows += [_row(f"**these {len(hard)}**", hard)] * (len(hard) > 1)
    rows += [_row(race.scenario, [race]) for race in easy]
    rows += [_row(f"**all {len(among)}**", among)] * (len(easy) > 0 and len(among) > 1)
    return f"`python -m benchmarks.suite.proof {folder} --out docs/results`.\n\n{markdown(rows)}\n\n" + (
        f"{_verdict(hard)}\n\n" if hard else ""
    )


def _row(title: str, some: Sequence[Race]) -> dict[str, str]:
    against = {f"t / t_{rival}": interval(relative_time(some, OURS, rival)) for rival in RIVALS}
    race = some[0] if len(some) == 1 else None
    points = difference(race, OURS, STATIC, final_accuracy) if race else None
    return {
        "scenario": title,
        f"s to target, `{OURS}`": interval(race.time_s(OURS, race.target), "{:.1f}") if race else "",
        **against,
        f"final accuracy, points above {STATIC}": interval(points, "{:+.2f}", scale=100) if race else "",
        "seeds": str(len(race.entries[OURS])) if race else "",
        "machine": ", ".join(sorted(_machines(race))) if race else "",
    }


def _machines(race: Race) -> set[str]:
    """That our agent and these rivals ran on."""
    cells = (cell for name in (OURS, *RIVALS) for cell in race.entries.get(name, {}).values())
    return {cell.machine or UNKNOWN for cell in cells}


def _verdict(hard: Sequence[Race]) -> str:
    """Where our agent does not what was hoped for, in words."""
    found = {
        rival: {race.scenario: one.value for race in hard if (one := relative_time([race], OURS, rival))}
        for rival in RIVALS
    }
    half = [name for name, value in found[STATIC].items() if value <= HALF]
    lower = [
        race.scenario
        for race in hard
        if (points := difference(race, OURS, STATIC, final_accuracy)) and points.value < -LOWER
    ]
    lines = [f"Of these {len(hard)}, at most {HALF} of `{STATIC}`: {_named(half)}."]
    lines += [f"Slower than `{rival}`: {_named([n for n, v in found[rival].items() if v > 1])}." for rival in RIVALS]
    lines.append(f"Final accuracy more than {100 * LOWER:g} points below `{STATIC}`: {_named(lower)}.")
    return " ".join(lines)


def _named(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "nowhere"


if __name__ == "__main__":
    raise SystemExit(renew("proof.md", __doc__, figures))
