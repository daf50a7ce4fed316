"""Figures, tables and picture of the study of decisions without a centre."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.report.page import markdown
from benchmarks.studies.kept_rows import Row, contest_of
from benchmarks.suite.intervals import jackknife
from dynamix_ps.policy.stigmergy.traces import TRACES
from dynamix_ps.sim.contest.comparison import Estimate, interquartile_mean
from dynamix_ps.sim.contest.contest import TUNED, Contest
from dynamix_ps.sim.contest.pictures import dots

ACTOR_NAME = "stigmergy"
CENTRAL = ("ppo", "goodput", "pid")
FIRST_SIZES = "first-sizes"
RIVALS = (*CENTRAL, TUNED, FIRST_SIZES)
BEHAVIOUR = ("waiting", "moved", "reversed")
SLOT_BYTES = 4 * (len(TRACES) + 2)  # traces, largest and next size of one worker, in float32


@dataclass(frozen=True, slots=True)
class Figures:
    """All figures. Ratios are the actor's time over another one's."""

    times_s: Mapping[str, Mapping[str, float]]  # interquartile means, by scenario and contender
    missed: Mapping[str, int]  # runs that never reached the target, by contender
    ratios: Mapping[str, Mapping[str, Estimate]]  # by group of scenarios, or scenario, and rival
    behaviour: Mapping[str, Mapping[str, float]]  # by contender: BEHAVIOUR and `largest`
    sizes: Mapping[str, Mapping[str, Estimate]]  # by stage and rival
    settings: Mapping[str, Estimate]  # time of a variant over that of the actor, over all stages


def figures_of(rows: Sequence[Row]) -> Figures:
    """The figures of all rows, as they are in memory or as a file gives them back."""

    def of(question: str) -> list[Row]:
        return [row for row in rows if row["question"] == question]

    main = of("scenarios")
    contests = {name: contest_of(main, name) for name in names_in(main)}
    constant = {row["scenario"]: str(row["constant"]) == "True" for row in main}
    groups = {
        "all": list(contests),
        "constant": [name for name in contests if constant[name]],
        "changing": [name for name in contests if not constant[name]],
    } | {name: [name] for name in contests}
    stage_rows = of("sizes")
    stages = {name: contest_of([*stage_rows, *of("settings")], name) for name in names_in(stage_rows)}
    variants = dict.fromkeys(row["policy"] for row in of("settings"))
    return Figures(
        times_s={
            name: {
                policy: float(interquartile_mean(contest.counted_s(policy, name)[None])) for policy in contest.policies
            }
            for name, contest in contests.items()
        },
        missed={
            policy: sum(int((~one.outcomes[policy, name].reached).sum()) for name, one in contests.items())
            for policy in (ACTOR_NAME, *RIVALS)
        },
        ratios={
            group: {rival: _ratio(contests, names, ACTOR_NAME, rival) for rival in RIVALS}
            for group, names in groups.items()
            if names
        },
        behaviour={policy: _behaviour(main, policy) for policy in (ACTOR_NAME, *RIVALS)},
        sizes={name: {rival: _ratio(stages, [name], ACTOR_NAME, rival) for rival in CENTRAL} for name in stages},
        settings={name: _ratio(stages, list(stages), name, ACTOR_NAME) for name in variants},
    )


def names_in(rows: Sequence[Row]) -> list[str]:
    """The scenarios by number of workers, and then by name."""
    workers = {row["scenario"]: int(row["workers"]) for row in rows}
    return sorted(workers, key=lambda name: (workers[name], name))


def _ratio(contests: Mapping[str, Contest], scenarios: Sequence[str], policy: str, rival: str) -> Estimate:
    """Time of a policy over that of a rival, paired by seed."""
    ratios = [contests[name].counted_s(policy, name) / contests[name].counted_s(rival, name) for name in scenarios]
    return jackknife(interquartile_mean, np.stack(ratios))


def _behaviour(rows: Sequence[Row], policy: str) -> dict[str, float]:
    mine = [row for row in rows if row["policy"] == policy]
    late = [float(row["largest"]) for row in mine if str(row["constant"]) == "True"]
    means = {name: float(np.mean([float(row[name]) for row in mine])) for name in BEHAVIOUR}
    return means | {"largest": max(late, default=0.0)}


def blocks(found: Figures) -> str:
    """All tables, in Markdown; those about other numbers where there are such."""
    tables = [
        f"Time to target in s, interquartile mean:\n\n{_times(found)}",
        f"Time of `{ACTOR_NAME}` over that of each rival, below 1 is faster:\n\n{_ratios(found.ratios)}",
        f"What happens until the target:\n\n{_what_happens(found)}",
    ]
    if found.sizes:
        tables += [
            f"With other numbers of workers, time of `{ACTOR_NAME}` over that of each rival:\n\n{_ratios(found.sizes)}",
            f"Another number in the actor's rule, time over that with the usual one:\n\n{_settings(found)}",
        ]
    return "\n\n".join(tables)


def _times(found: Figures) -> str:
    return markdown(
        [
            {"scenario": name} | {policy: f"{times[policy]:,.0f}" for policy in (ACTOR_NAME, *RIVALS)}
            for name, times in found.times_s.items()
        ]
    )


def _ratios(ratios: Mapping[str, Mapping[str, Estimate]]) -> str:
    return markdown(
        [{"clusters": name} | {rival: in_words(one) for rival, one in row.items()} for name, row in ratios.items()]
    )


def _what_happens(found: Figures) -> str:
    messages = {ACTOR_NAME: f"none; {SLOT_BYTES} bytes per worker in each sum", TUNED: "none", FIRST_SIZES: "none"}
    return markdown(
        [
            {
                "contender": policy,
                "missed": str(found.missed[policy]),
                "waiting": f"{100 * one['waiting']:.1f} %",
                "moved per window": f"{100 * one['moved']:.2f} %",
                "reversed": f"{100 * one['reversed']:.0f} %",
                "largest late move": f"{100 * one['largest']:.1f} %",
                "messages": messages.get(policy, "a record per worker and window, and each plan to all workers"),
            }
            for policy, one in found.behaviour.items()
        ]
    )


def _settings(found: Figures) -> str:
    return markdown([{"number": name, "time": in_words(one)} for name, one in found.settings.items()])


def in_words(one: Estimate) -> str:
    """As in 1.012 [1.010, 1.014]."""
    return f"{one.value:.3f} [{one.low:.3f}, {one.high:.3f}]"


def picture(figure: Any, found: Figures) -> None:
    """Ratios of every scenario."""
    names = list(found.times_s)
    columns = {rival: [found.ratios[name][rival] for name in names] for rival in RIVALS}
    title = f"Simulated time to target of {ACTOR_NAME} over that of each rival: interquartile mean, 95 % interval"
    dots(figure, names, columns, "time over the rival's (log scale; left: the actors are faster)", title)
