"""The page of the simulated study of language models: how well the simulator fits, and where batch sizes of 2^10 to
2^22 tokens lead."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from benchmarks.report.page import markdown
from benchmarks.studies.agent_answers import Answer
from benchmarks.studies.gpt_cells import (
    AGENT,
    CLUSTERS,
    FIRST_SIZE,
    GOODPUT,
    MODEL,
    TARGETS,
    WORKERS,
)
from benchmarks.studies.gpt_simulated_check import (
    Fit,
    check_row,
    checked,
    fit_of,
    loss_row,
    rule_row,
    size_row,
    trainings,
)
from benchmarks.studies.gpt_simulated_fit import (
    FITTED,
    RULE,
    SIZES,
    halves,
    mean_losses,
    noise_at,
    rehearsed_runs,
)
from benchmarks.studies.gpt_simulated_runs import Contest, Ratio, Who, runs_of, static
from benchmarks.studies.gpt_simulated_worlds import FIXED, IN_BOUNDS, PAPER, TIMES, UNITS
from benchmarks.studies.kept_rows import Row
from benchmarks.studies.study import Report
from dynamix_ps.policy.learned.paper import PAPER_BOUNDS
from dynamix_ps.report.plots.style import WORKER_COLOURS

CHOOSING, MARKS = (AGENT, MODEL, GOODPUT), "os^"


def report(rows: Sequence[Row]) -> Report:
    """What all rows say, beside the rehearsed runs."""
    runs, rehearsed = runs_of(rows), rehearsed_runs()
    unseen = halves(rehearsed)[1]
    by_rule = trainings(rehearsed)
    noise_scale = noise_at(by_rule[RULE], TARGETS[1].value)
    found = [fit_of(tokens, runs, unseen) for tokens in SIZES if (static(tokens, left_out=tokens), CLUSTERS[0]) in runs]
    with_all = {key: one for key, one in runs.items() if not key[0].left_out}
    contest, checks = Contest(with_all), checked(with_all, rehearsed)
    tables = "\n\n".join(
        (
            "### How well the simulator fits",
            "Time to the targets that rehearsed runs reach, by fixed size:",
            markdown([size_row(one) for one in found]),
            "Test loss after all tokens, nats per byte:",
            markdown([loss_row(one) for one in found]),
            "The questions of the rehearsals:",
            markdown([check_row(*one) for one in checks]),
            "Fits with each rule of the simulator:",
            markdown([rule_row(rule, one, mean_losses(unseen)) for rule, one in by_rule.items()]),
            "### From 2^10 to 2^22 tokens",
            "Time to the targets over that of the best fixed size, by noise scale in tokens:",
            markdown(_times(contest, noise_scale)),
            "Tokens of an iteration, mean over runs, and of the largest one:",
            markdown(_batches(contest, noise_scale)),
        )
    )
    figures = figures_of(found, checks, contest) | {"training": by_rule[RULE].model_dump(include=set(FITTED))}
    return Report(tables, lambda figure: draw(figure, contest, noise_scale), figures)


def contenders(times: int) -> dict[str, Who]:
    """Those that choose, by their names on the page."""
    found = {name: Who(name, times) for name in CHOOSING}
    found |= {
        f"{name}, first sizes along": Who(name, times, first=FIRST_SIZE * times) for name in CHOOSING if times > 1
    }
    for unit in UNITS:
        counts = "tokens" if unit == 1 else f"sequences of {unit:,}"
        found |= {f"{one}, {counts}": Who(one, times, unit) for one in (PAPER, IN_BOUNDS)}
    return found


def _known(contest: Contest) -> list[int]:
    return [times for times in TIMES if contest.has(Who(AGENT, times))]


def _times(contest: Contest, noise_scale: float) -> list[dict[str, str]]:
    """Time over that of the best fixed size, a column per noise scale."""
    known = _known(contest)
    whos = {times: {name: who for name, who in contenders(times).items() if contest.has(who)} for times in known}
    names = [name for name in contenders(TIMES[-1]) if any(name in found for found in whos.values())]

    def ratio(name: str, times: int) -> str:
        return str(contest.over(whos[times][name])) if name in whos[times] else "-"

    return [
        {"who": f"`{name}`"} | {_column(times, noise_scale): ratio(name, times) for times in known} for name in names
    ]


def _batches(contest: Contest, noise_scale: float) -> list[dict[str, str]]:
    """Tokens of an iteration, a column per noise scale."""

    def best(times: int) -> str:
        found = [contest.batch(contest.best_static(times, cluster)) for cluster in contest.clusters]
        return " and ".join(dict.fromkeys(f"{one:,.0f}" for one in found))

    def chosen(who: Who) -> str:
        return f"{contest.batch(who):,.0f}, at most {contest.largest(who):,.0f}"

    columns = {times: _column(times, noise_scale) for times in _known(contest)}
    return [
        {"who": "best fixed size"} | {column: best(times) for times, column in columns.items()},
        *(
            {"who": f"`{name}`"} | {column: chosen(Who(name, times)) for times, column in columns.items()}
            for name in CHOOSING
        ),
    ]


def _column(times: int, noise_scale: float) -> str:
    return f"x{times}: {_short(times * noise_scale)}"


def draw(figure: Any, contest: Contest, noise_scale: float) -> None:
    """Time over that of the best fixed size: by tokens of an iteration, and by the noise scale in sizes of the paper.

    Args:
        noise_scale: of the rehearsed model, in tokens.
    """
    figure.set_size_inches(12, 5)
    figure.suptitle("Simulated. Open marks: at least")
    by_tokens, by_noise = figure.subplots(1, 2, sharey=True)
    for number, times in enumerate(_known(contest)):
        colour = WORKER_COLOURS[number]
        whos = [who for who in (static(tokens, times) for tokens in FIXED) if contest.has(who)]
        ratios = [contest.over(who).estimate.value for who in whos]
        label = f"fixed sizes, noise scale {_short(noise_scale * times)}"
        by_tokens.plot([contest.batch(who) for who in whos], ratios, color=colour, linewidth=1.4, label=label)
        for name, mark in zip(CHOOSING, MARKS, strict=True):
            who = Who(name, times)
            label = name if not number else ""
            place = (contest.batch(who), contest.over(who).estimate.value)
            by_tokens.plot(*place, mark, color=colour, markersize=7, label=label or None)
    for number, name in enumerate((PAPER, IN_BOUNDS)):
        whos = [who for times in _known(contest) for unit in UNITS if contest.has(who := Who(name, times, unit))]
        points = sorted(((noise_scale * who.times / who.unit, contest.over(who)) for who in whos), key=itemgetter(0))
        sizes, ratios = [size for size, _ in points], [ratio.estimate.value for _, ratio in points]
        look = {"color": WORKER_COLOURS[4 + number], "linestyle": "--" if name == PAPER else "-"}
        by_noise.plot(sizes, ratios, label=name, linewidth=1.4, **look)
        for size, ratio in points:
            face = "white" if ratio.misses else look["color"]
            by_noise.plot(size, ratio.estimate.value, "o", color=look["color"], markerfacecolor=face, markersize=5)
    for edge in PAPER_BOUNDS:
        by_noise.axvline(WORKERS * edge, color="#777777", linestyle=":", linewidth=1)
    by_tokens.set(xlabel=f"tokens of an iteration, {WORKERS} workers", ylabel="time over that of the best fixed size")
    edges = " and ".join(f"{WORKERS} x {edge}" for edge in PAPER_BOUNDS)
    by_noise.set(xlabel=f"noise scale in sizes (tokens or sequences); dotted: {edges}")
    for axes in (by_tokens, by_noise):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.axhline(1, color="#bbbbbb", linewidth=1, zorder=0)
        axes.grid(color="#e5e5e5")
        axes.set_axisbelow(True)
        axes.legend(fontsize="small")


def _short(tokens: float) -> str:
    return f"{tokens / 1e6:.2g} M" if tokens >= 1e6 else f"{tokens / 1e3:.3g} k"


def figures_of(fits: Sequence[Fit], checks: Sequence[tuple[Answer, Ratio]], contest: Contest) -> dict[str, Any]:
    """For JSON."""
    known = _known(contest)
    return {
        "fits": [dataclasses.asdict(one) for one in fits],
        "checks": [
            {
                "contender": answer.question.contender,
                "reference": answer.question.reference,
                "rehearsed": dataclasses.asdict(answer.ratio) if answer.ratio else None,
                "simulated": dataclasses.asdict(ratio),
            }
            for answer, ratio in checks
        ],
        "over_best_static": {
            f"x{times}": {
                name: dataclasses.asdict(contest.over(who)) | {"tokens": contest.batch(who)}
                for name, who in contenders(times).items()
                if contest.has(who)
            }
            for times in known
        },
    }
