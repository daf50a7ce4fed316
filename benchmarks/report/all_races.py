"""Tables over all races in Markdown: the subject against every rival, and everybody against tuned static sizes."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.report.comparison import Comparison, titles_of
from benchmarks.report.one_race import UNKNOWN, chance, interval
from benchmarks.report.page import markdown
from benchmarks.suite.statistics import STATIC, Race, contenders_of, improvement, relative_time, with_static

RELATIVE_PICTURE = "relative-time.png"


def against_every_rival(all_races: Sequence[Race], found: Sequence[Comparison]) -> str:
    """The subject's t / t_rival in each race and over all, and its probability of improvement; empty without rivals."""
    if not found:
        return ""
    subject = found[0].subject
    rows = [
        {"scenario": title} | {f"`{one.rival}`": interval(one.by_race.get(title)) for one in found}
        for race in all_races
        if subject in race.entries
        for title in [titles_of(all_races)[race.name]]
    ]
    if len(rows) > 1:
        rows.append({"scenario": "**all**"} | {f"`{one.rival}`": interval(one.overall) for one in found})
    shared = {one.rival: [race for race in all_races if race.common_seeds(subject, one.rival)] for one in found}
    chances = {
        f"`{rival}`": chance(improvement(some, subject, rival)) if some else UNKNOWN for rival, some in shared.items()
    }
    rows.append({"scenario": "probability of improvement"} | chances)
    return f"## `{subject}` against every rival\n\nt / t_rival to the target, below 1 is faster.\n\n{markdown(rows)}"


def relative(all_races: Sequence[Race]) -> str:
    """Everybody's t / t_static in each race and over all; empty where no race has a static size."""
    among = with_static(all_races)
    if not among:
        return ""
    contenders = [name for name in contenders_of(among) if name != STATIC]

    def row(title: str, some: Sequence[Race]) -> dict[str, str]:
        found = {name: one for name in contenders if (one := relative_time(some, name, STATIC))}
        ranked = {name: one.value for name, one in found.items() if all(race.has_enough_seeds(name) for race in some)}
        best = min([1.0, *ranked.values()])
        static = some[0].tuned if len(some) == 1 else STATIC
        line = {"scenario": title, f"`{STATIC}`": f"**{static}**" if best == 1 else static}
        for name in contenders:
            text = interval(found.get(name))
            line[f"`{name}`"] = f"**{text}**" if ranked.get(name) == best else text
        return line

    about = f"t / t_{STATIC}. The fastest is bold; contenders with fewer seeds than others cannot be."
    titles = titles_of(all_races)
    rows = [row(titles[race.name], [race]) for race in among] + ([row("**all**", among)] if len(among) > 1 else [])
    image = f"![Time to target relative to tuned {STATIC}]({RELATIVE_PICTURE})"
    return f"## Everybody against tuned `{STATIC}`\n\n{about}\n\n{image}\n\n{markdown(rows)}"
