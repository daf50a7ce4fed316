"""Tables over all races: ours against everybody else, everybody against tuned static sizes. In Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.report.one_race import faster, interval
from benchmarks.report.page import markdown
from benchmarks.suite.statistics import (
    OURS,
    STATIC,
    Race,
    contenders_of,
    improvement,
    relative_time,
    with_static,
)

RELATIVE_PICTURE = "relative-time.png"


def ours(all_races: Sequence[Race]) -> str:
    """Ours against everybody else, over all races and in each; where it loses is said by name."""
    rivals = [name for name in contenders_of(all_races) if name != OURS]
    rows = [row for name in rivals if (row := _rival_row(all_races, name))]
    if not rows:
        return ""
    about = "Time to the target, over the scenarios and seeds that both have."
    among = [race for race in all_races if OURS in race.entries]
    each = (
        ""
        if len(among) < 2
        else f"t / t_rival in each scenario:\n\n{markdown([_race_row(race, rivals) for race in among])}"
    )
    return f"## `{OURS}` against every rival\n\n{about}\n\n{markdown(rows)}\n\n{each}"


def _rival_row(all_races: Sequence[Race], rival: str) -> dict[str, str] | None:
    shared = [race for race in all_races if race.common_seeds(OURS, rival)]
    found = {race.name: one for race in shared if (one := relative_time([race], OURS, rival))}
    if not found:
        return None
    overall = relative_time(shared, OURS, rival)
    seeds = [len(race.common_seeds(OURS, rival)) for race in shared]
    slower = [f"{name} ({one.value:.2f})" for name, one in found.items() if one.value > 1]
    return {
        "rival": f"`{rival}`",
        "t / t_rival": interval(overall),
        "faster": faster(overall),
        "probability of improvement": interval(improvement(shared, OURS, rival)),
        "faster in": f"{sum(one.value < 1 for one in found.values())} of {len(found)}",
        "slower in": ", ".join(slower) or "none",
        "seeds": " to ".join(map(str, sorted({min(seeds), max(seeds)}))),
    }


def _race_row(race: Race, rivals: Sequence[str]) -> dict[str, str]:
    against = {f"`{name}`": interval(relative_time([race], OURS, name)) for name in rivals}
    return {"scenario, workload": race.name} | against


def relative(all_races: Sequence[Race]) -> str:
    """Everybody against tuned static."""
    among = with_static(all_races)
    if not among:
        return ""
    contenders = [name for name in contenders_of(among) if name != STATIC]

    def row(title: str, some: Sequence[Race]) -> dict[str, str]:
        found = {name: one for name in contenders if (one := relative_time(some, name, STATIC))}
        ranked = {name: one.value for name, one in found.items() if all(race.has_enough_seeds(name) for race in some)}
        best = min([1.0, *ranked.values()])
        static = some[0].tuned if len(some) == 1 else STATIC
        line = {"scenario, workload": title, f"`{STATIC}`": f"**{static}**" if best == 1 else static}
        for name in contenders:
            text = interval(found.get(name))
            line[f"`{name}`"] = f"**{text}**" if ranked.get(name) == best else text
        return line

    about = f"t / t_{STATIC}, the fastest in bold, but for those with too few seeds to tell."
    rows = [row(race.name, [race]) for race in among] + ([row("all", among)] if len(among) > 1 else [])
    image = f"![Time to target relative to tuned {STATIC}]({RELATIVE_PICTURE})"
    return f"## Everybody against tuned `{STATIC}`\n\n{about}\n\n{markdown(rows)}\n\n{image}"
