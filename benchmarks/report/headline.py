"""The opening of a report in Markdown: what the results mean in two sentences, one picture and one table."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.report.comparison import Comparison
from benchmarks.report.one_race import UNKNOWN, faster, interval
from benchmarks.report.page import markdown
from benchmarks.suite.statistics import STATIC, Race

HEADLINE_PICTURE = "headline.png"
NAMED_RIVALS = 2  # strongest rivals that the second sentence names
NOTHING = "No two contenders have a run of the same scenario and seed, so there is nothing to compare."


def headline(all_races: Sequence[Race], found: Sequence[Comparison]) -> str:
    """Two sentences, the picture and the table, in Markdown."""
    if not found:
        return NOTHING
    image = f"![Time to the target of {found[0].subject} over that of every rival]({HEADLINE_PICTURE})"
    return f"{_sentences(all_races, found)}\n\n{image}\n\n{markdown([_row(one) for one in found])}"


def _sentences(all_races: Sequence[Race], found: Sequence[Comparison]) -> str:
    """What the results mean: first against tuned static sizes, then against the strongest other rivals."""
    subject = found[0].subject
    against_static = next((one for one in found if one.rival == STATIC), None)
    strongest = [one for one in found if one.rival != STATIC][:NAMED_RIVALS]
    lines = []
    if against_static:
        lines.append(
            f"`{subject}` reaches {_target(all_races)} in **{interval(against_static.overall)}** of the time of tuned "
            f"`{STATIC}` over {_how_many(all_races, against_static)}: {against_static.verdict()}."
        )
    if strongest:
        ratios = ", and ".join(f"**{interval(one.overall)}** of `{one.rival}` ({one.verdict()})" for one in strongest)
        who = "its strongest rivals" if len(strongest) > 1 else "its strongest rival"
        begin = "Against" if against_static else f"`{subject}` against"
        lines.append(f"{begin} {who}, by time to the target, it takes {ratios}.")
    return " ".join(lines)


def _row(one: Comparison) -> dict[str, str]:
    count = len(one.by_race)
    noise = count - len(one.faster) - len(one.slower)
    clear = {"clearly faster in": len(one.faster), "within the noise in": noise, "clearly slower in": len(one.slower)}
    above = [f"{race} ({value.value:.2f})" for race, value in one.by_race.items() if value.value > 1]
    return {
        "rival": f"`{one.rival}`",
        "t / t_rival": interval(one.overall),
        "faster": faster(one.overall),
        **{column: f"{number} of {count}" if one.has_interval else UNKNOWN for column, number in clear.items()},
        "ratio above 1 in": ", ".join(above) or "none",
        "seeds": " to ".join(map(str, sorted(set(one.common_seeds)))),
    }


def _target(all_races: Sequence[Race]) -> str:
    targets = {race.metric.in_words(race.target) for race in all_races}
    return targets.pop() if len(targets) == 1 else "the target"


def _how_many(all_races: Sequence[Race], one: Comparison) -> str:
    count = len(one.by_race)
    if count == 1:
        return next(iter(one.by_race))
    one_workload = len({race.workload for race in all_races}) == 1
    return f"{count} scenarios" if one_workload else f"{count} pairs of scenario and workload"
