"""What was hoped for beside what a grid measured: our agent against its strongest rivals, scenario by scenario.

Then where the time goes, and everybody else.

    python -m benchmarks.report.proof FOLDER --out benchmarks/results/history

FOLDER holds the tables of a grid. The figures of benchmarks/results/history/proof.md are replaced.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from benchmarks.report.comparison import titles_of
from benchmarks.report.grid_page import renew
from benchmarks.report.one_race import UNKNOWN, interval
from benchmarks.report.page import markdown
from benchmarks.suite.grid import load_grid
from benchmarks.suite.results import CellResult
from benchmarks.suite.statistics import (
    OURS,
    STATIC,
    Figure,
    Race,
    contenders_of,
    difference,
    final_value,
    global_batch_until,
    relative_time,
    samples_per_s,
    samples_to,
)

Row = dict[str, str]
Titles = Mapping[str, str]  # by name of a race

RIVALS = (STATIC, "pid", "goodput")
HALF = 0.54  # of static's time, the gain that DYNAMIX reports (arXiv 2510.08522, abstract)
LOWER = 0.003  # what final accuracy may lie below static's, as scatter (chosen by us)


def figures(among: Sequence[Race], folder: str) -> Sequence[str]:
    """Three blocks in Markdown: the strongest rivals, what the time went to, and all other contenders.

    Scenarios in which speeds differ much or change or a link is slow come first.
    """
    demanding = load_grid("proof").scenarios
    hard = [race for race in among if race.scenario in demanding]
    easy = [race for race in among if race.scenario not in demanding]
    titles = titles_of(among)
    command = f"`python -m benchmarks.report.proof {folder} --out benchmarks/results/history`.\n\n"
    return [
        f"{command}{_proof(among, hard, easy, titles)}\n\n" + (f"{_verdict(hard, titles)}\n\n" if hard else ""),
        f"{markdown([where_time_goes(titles[race.name], race) for race in (*hard, *easy)])}\n\n",
        f"{_others(hard, easy, titles)}\n\n",
    ]


def _proof(among: Sequence[Race], hard: Sequence[Race], easy: Sequence[Race], titles: Titles) -> str:
    rows = [against_rivals(titles[race.name], [race]) for race in hard]
    rows += [against_rivals(f"**these {len(hard)}**", hard)] * (len(hard) > 1)
    rows += [against_rivals(titles[race.name], [race]) for race in easy]
    rows += [against_rivals(f"**all {len(among)}**", among)] * (len(easy) > 0 and len(among) > 1)
    return markdown(rows)


def against_rivals(title: str, some: Sequence[Race]) -> Row:
    """Our agent against its strongest rivals, over several races or in a single one, of which there is more to say."""
    against = {f"t / t_{rival}": interval(relative_time(some, OURS, rival)) for rival in RIVALS}
    race = some[0] if len(some) == 1 else None
    points = difference(race, OURS, STATIC, final_value) if race else None
    return {
        "scenario": title,
        f"s to target, `{OURS}`": interval(race.time_s(OURS, race.target), "{:.1f}") if race else "",
        **against,
        f"final accuracy, points above {STATIC}": interval(points, "{:+.2f}", scale=100) if race else "",
        "seeds": str(len(race.entries[OURS])) if race else "",
        "machine": ", ".join(sorted(_machines(race))) if race else "",
    }


def where_time_goes(title: str, race: Race) -> Row:
    """Means over seeds; samples to the target and the global batch until then of those that arrived."""

    def samples_and_rate(name: str) -> str:
        if name not in race.entries:
            return UNKNOWN
        samples = race.over_seeds(name, lambda cell: samples_to(cell, race.target))
        rate = race.over_seeds(name, samples_per_s)
        arrived = f"{round(samples.value, -2):,.0f}" if samples else "never"
        return f"{arrived} / {f'{round(rate.value, -1):,.0f}' if rate else UNKNOWN}"

    def whole(name: str, figure: Figure) -> str:
        found = race.over_seeds(name, figure) if name in race.entries else None
        return f"{found.value:.0f}" if found else UNKNOWN

    def batch(cell: CellResult) -> float | None:
        return global_batch_until(cell, race.target)

    def waiting(cell: CellResult) -> float | None:
        return None if cell.wait_fraction is None else 100 * cell.wait_fraction

    first, *others = shown = (STATIC, "goodput", OURS)
    return {
        "scenario": title,
        f"`{first}`: samples to {race.metric.in_short(race.target)} / samples per s": samples_and_rate(first),
        **{f"`{name}`: the same": samples_and_rate(name) for name in others},
        "global batch until then, of the latter two": " / ".join(whole(name, batch) for name in others),
        "waiting of the three, % of the time": " / ".join(whole(name, waiting) for name in shown),
    }


def _others(hard: Sequence[Race], easy: Sequence[Race], titles: Titles) -> str:
    """Everybody of whom nothing was hoped, by time against static; scenarios count together, so all must have run."""
    groups = {title: some for title, some in ((f"these {len(hard)}", hard), (f"other {len(easy)}", easy)) if some}
    among = [*hard, *easy]
    order = {name: relative_time(hard or easy, name, STATIC) for name in contenders_of(among)}
    names = sorted(
        (name for name in order if name not in (OURS, *RIVALS)),
        key=lambda name: (one.value if (one := order[name]) else math.inf, name),
    )

    def row(name: str) -> Row:
        seeds = {len(race.common_seeds(name, OURS)) for race in among}
        figures = {
            column: interval(relative_time(some, *pair))
            for title, some in groups.items()
            for column, pair in {
                f"t / t_{STATIC}, {title}": (name, STATIC),
                f"`{OURS}` over it, {title}": (OURS, name),
            }.items()
        }
        ahead = [titles[race.name] for race in among if (one := relative_time([race], OURS, name)) and one.value > 1]
        return {
            "contender": f"`{name}`",
            **figures,
            f"faster than `{OURS}` in": _named(ahead),
            "seeds": " to ".join(str(count) for count in sorted({min(seeds), max(seeds)})),
        }

    return markdown([row(name) for name in names]) if names else "Nobody else took part."


def _machines(race: Race) -> set[str]:
    """That our agent and these rivals ran on."""
    cells = (cell for name in (OURS, *RIVALS) for cell in race.entries.get(name, {}).values())
    return {cell.machine or UNKNOWN for cell in cells}


def _verdict(hard: Sequence[Race], titles: Titles) -> str:
    """Where our agent does not what was hoped for, in words."""
    found = {
        rival: {titles[race.name]: one.value for race in hard if (one := relative_time([race], OURS, rival))}
        for rival in RIVALS
    }
    half = [name for name, value in found[STATIC].items() if value <= HALF]
    lower = [
        titles[race.name]
        for race in hard
        if (points := difference(race, OURS, STATIC, final_value)) and points.value < -LOWER
    ]
    lines = [f"Of these {len(hard)}, at most {HALF} of `{STATIC}`: {_named(half)}."]
    lines += [f"Slower than `{rival}`: {_named([n for n, v in found[rival].items() if v > 1])}." for rival in RIVALS]
    lines.append(f"Final accuracy more than {100 * LOWER:g} points below `{STATIC}`: {_named(lower)}.")
    return " ".join(lines)


def _named(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "nowhere"


if __name__ == "__main__":
    raise SystemExit(renew("proof.md", __doc__, figures))
