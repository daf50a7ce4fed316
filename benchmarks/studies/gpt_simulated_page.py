"""The page of the simulated study of language models: how well the simulator fits, and where batch sizes of 2^10 to
2^22 tokens lead."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.report.page import markdown
from benchmarks.studies.agent_answers import Answer
from benchmarks.studies.gpt_cells import (
    AGENT,
    CLUSTERS,
    GOODPUT,
    MODEL,
    NAME,
    PAPER_SEQUENCES,
    PAPER_TOKENS,
    QUESTIONS,
    STATICS,
    TARGETS,
    WORKERS,
)
from benchmarks.studies.gpt_page import runs_of as rehearsed_answers
from benchmarks.studies.gpt_simulated_fit import (
    FITTED,
    RULE,
    RULES,
    SIZES,
    Rule,
    error,
    fit,
    halves,
    mean_losses,
    measured_noise,
    noise_at,
    rehearsed_runs,
)
from benchmarks.studies.gpt_simulated_runs import TUNED, Contest, Ratio, Run, Runs, Who, runs_of, static
from benchmarks.studies.gpt_simulated_worlds import FEWEST, IN_BOUNDS, MOST, PAPER, TIMES, UNITS
from benchmarks.studies.kept_rows import Row
from benchmarks.studies.rehearsed_cells import Name
from benchmarks.studies.study import Report
from benchmarks.workloads.text import CONTEXT
from dynamix_ps.policy.learned.paper import PAPER_BOUNDS
from dynamix_ps.rehearsal.outcome import Outcome
from dynamix_ps.report.plots.style import WORKER_COLOURS
from dynamix_ps.sim.contest.comparison import Array
from dynamix_ps.sim.scenario.parts import Training

CHOOSING, MARKS = (AGENT, MODEL, GOODPUT), "os^"
CHECKED = {AGENT: Who(AGENT), MODEL: Who(MODEL), GOODPUT: Who(GOODPUT)} | {
    PAPER_TOKENS: Who(PAPER),
    PAPER_SEQUENCES: Who(PAPER, unit=CONTEXT),
}  # by their names in the rehearsals


@dataclass(frozen=True, slots=True)
class Fit:
    """A fixed size, rehearsed with seeds that the fit has not seen, and simulated.

    Attributes:
        over_tuned: time over that of TUNED to the targets that all rehearsed runs reach; NaN: they reach none.
        seconds: the same times over the rehearsed ones: simulated, and by a fit without this size.
        loss: after all tokens; infinite: the simulation has ended before.
    """

    tokens: int
    targets: int
    over_tuned: tuple[float, float, float]  # rehearsed, simulated, simulated by a fit without this size
    seconds: tuple[float, float]  # simulated, simulated by a fit without this size
    loss: tuple[float, float, float]


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
            markdown([_rule_row(rule, one, mean_losses(unseen)) for rule, one in by_rule.items()]),
            markdown([_size_row(one) for one in found]),
            markdown([_loss_row(one) for one in found]),
            markdown([_check_row(*one) for one in checks]),
            "### From 2^10 to 2^22 tokens",
            markdown(_times(contest, noise_scale)),
            markdown(_batches(contest, noise_scale)),
        )
    )
    figures = figures_of(found, checks, contest) | {"training": by_rule[RULE].model_dump(include=set(FITTED))}
    return Report(tables, lambda figure: draw(figure, contest, noise_scale), figures)


def fit_of(tokens: int, runs: Runs, unseen: Mapping[Name, Outcome]) -> Fit:
    """How well this size is simulated."""
    mine, tuned = ([one for name, one in unseen.items() if name.contender == SIZES[size]] for size in (tokens, TUNED))
    reached = [number for number, target in enumerate(TARGETS) if all(one.reached(target) for one in mine)]

    def rehearsed_log_s(outcomes: Sequence[Outcome]) -> float:
        arrivals = [one.reached(TARGETS[number]) for one in outcomes for number in reached]
        return float(np.mean([math.log(one.time_s) for one in arrivals if one])) if arrivals else math.nan

    def simulated_log_s(size: int, left_out: int) -> float:
        found = _all(runs, static(size, left_out=left_out))
        return float(np.mean([np.log(one.time_s)[reached] for one in found])) if reached else math.nan

    whole, part = (simulated_log_s(tokens, left_out) for left_out in (0, tokens))
    measured = rehearsed_log_s(mine)
    over = (
        measured - rehearsed_log_s(tuned),
        whole - simulated_log_s(TUNED, 0),
        part - simulated_log_s(TUNED, tokens),
    )
    losses = [one.curve[-1].values["loss"] for one in mine]
    simulated = [[one.whole_loss for one in _all(runs, static(tokens, left_out=left_out))] for left_out in (0, tokens)]
    return Fit(
        tokens=tokens,
        targets=len(reached),
        over_tuned=_exp(over),
        seconds=_exp((whole - measured, part - measured)),
        loss=_means(losses, *simulated),
    )


def _exp(logs: Sequence[float]) -> tuple[Any, ...]:
    return tuple(math.exp(one) for one in logs)


def _means(*values: Sequence[float]) -> tuple[Any, ...]:
    return tuple(float(np.mean(one)) for one in values)


def _all(runs: Runs, who: Who) -> list[Run]:
    return [run for cluster in CLUSTERS for run in runs.get((who, cluster), ())]


def trainings(rehearsed: Mapping[Name, Outcome]) -> dict[Rule, Training]:
    """The fit with each rule of the simulator."""
    losses, noise = mean_losses(halves(rehearsed)[0]), measured_noise()
    return {rule: fit(losses, noise, rule) for rule in RULES}


def checked(runs: Runs, rehearsed: Mapping[Name, Outcome]) -> list[tuple[Answer, Ratio]]:
    """The questions of the study of language models: the answers of the rehearsals, and the simulated ones."""
    contest = Contest(runs, whole=True, statics=tuple(STATICS))
    answers = rehearsed_answers(rehearsed)
    return [
        (answers.answer(one, (NAME,)), contest.over(CHECKED[one.contender], CHECKED.get(one.reference)))
        for one in QUESTIONS
    ]


def _rule_row(rule: Rule, training: Training, unseen: Mapping[int, Array]) -> dict[str, str]:
    return {
        "learning-rate rule": f"`{rule}`" + ", taken" * (rule == RULE),
        "error of the tokens to a loss": f"{error(training, unseen, rule):.0%}",
    }


def _size_row(one: Fit) -> dict[str, str]:
    over, seconds = ([_number(value) for value in values] for values in (one.over_tuned, one.seconds))
    return {
        "tokens of an iteration": f"{one.tokens:,}",
        "targets reached": str(one.targets),
        f"time over that of {TUNED:,}, rehearsed": over[0],
        "simulated": over[1],
        "by a fit without this size": over[2],
        "simulated seconds over rehearsed ones": seconds[0],
    }


def _loss_row(one: Fit) -> dict[str, str]:
    rehearsed, simulated, left_out = map(_number, one.loss)
    return {
        "tokens of an iteration": f"{one.tokens:,}",
        "loss after all tokens, rehearsed": rehearsed,
        "simulated": simulated,
        "by a fit without this size": left_out,
    }


def _number(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "-"


def _check_row(rehearsed: Answer, simulated: Ratio) -> dict[str, str]:
    question, ratio = rehearsed.question, rehearsed.ratio
    assert ratio is not None  # the rehearsals have all their pairs
    return {
        "contender / reference": f"{question.contender} / {question.reference}",
        "rehearsed": str(Ratio(ratio, rehearsed.misses > 0)),
        "simulated": str(simulated),
        "simulated over rehearsed": f"{simulated.estimate.value / ratio.value:.2f}",
    }


def contenders(times: int) -> dict[str, Who]:
    """Those that choose, by their names on the page."""
    found = {name: Who(name, times) for name in CHOOSING}
    for unit in UNITS:
        counts = "tokens" if unit == 1 else f"sequences of {unit:,}"
        found |= {f"{one}, {counts}": Who(one, times, unit) for one in (PAPER, IN_BOUNDS)}
    return found


def _known(contest: Contest) -> list[int]:
    return [times for times in TIMES if contest.has(Who(AGENT, times))]


def _times(contest: Contest, noise_scale: float) -> list[dict[str, str]]:
    """Time over that of the best fixed size, a column per noise scale."""
    known = _known(contest)
    return [
        {"who": f"`{name}`"}
        | {_column(times, noise_scale): str(contest.over(contenders(times)[name])) for times in known}
        for name, who in contenders(known[0]).items()
        if contest.has(who)
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
        {"tokens of an iteration": "best fixed size"} | {column: best(times) for times, column in columns.items()},
        *(
            {"tokens of an iteration": f"`{name}`"}
            | {column: chosen(Who(name, times)) for times, column in columns.items()}
            for name in CHOOSING
        ),
    ]


def _column(times: int, noise_scale: float) -> str:
    return f"noise scale x{times}: {_short(times * noise_scale)}"


def draw(figure: Any, contest: Contest, noise_scale: float) -> None:
    """Time over that of the best fixed size: by tokens of an iteration, and by the noise scale in sizes of the paper.

    Args:
        noise_scale: of the rehearsed model, in tokens.
    """
    figure.set_size_inches(12, 5)
    figure.suptitle("Simulated; colours and lines by noise scale (left), arrows: at least (right)")
    by_tokens, by_noise = figure.subplots(1, 2, sharey=True)
    for number, times in enumerate(_known(contest)):
        colour = WORKER_COLOURS[number]
        whos = [who for who in _sizes(times) if contest.has(who)]
        ratios = [contest.over(who).estimate.value for who in whos]
        label = f"fixed sizes, noise scale {_short(noise_scale * times)}"
        by_tokens.plot([contest.batch(who) for who in whos], ratios, color=colour, linewidth=1.4, label=label)
        for name, mark in zip(CHOOSING, MARKS, strict=True):
            who = Who(name, times)
            label = name if not number else ""
            place = (contest.batch(who), contest.over(who).estimate.value)
            by_tokens.plot(*place, mark, color=colour, markersize=7, label=label or None)
    for name, style in ((PAPER, "v--"), (IN_BOUNDS, "o-")):
        points = sorted(
            (noise_scale * who.times / who.unit, contest.over(who).estimate.value)
            for who in (Who(name, times, unit) for times in _known(contest) for unit in UNITS)
            if contest.has(who)
        )
        by_noise.plot(*zip(*points, strict=True), style, color=WORKER_COLOURS[4 + (name == PAPER)], label=name)
    for edge in PAPER_BOUNDS:
        by_noise.axvline(WORKERS * edge, color="#777777", linestyle=":", linewidth=1)
    by_tokens.set(xlabel=f"tokens of an iteration, {WORKERS} workers", ylabel="time over that of the best fixed size")
    by_noise.set(xlabel=f"noise scale in sizes (tokens or sequences); dotted: {WORKERS} smallest and largest sizes")
    for axes in (by_tokens, by_noise):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.axhline(1, color="#bbbbbb", linewidth=1, zorder=0)
        axes.grid(color="#e5e5e5")
        axes.set_axisbelow(True)
        axes.legend(fontsize="small")


def _short(tokens: float) -> str:
    return f"{tokens / 1e6:.2g} M" if tokens >= 1e6 else f"{tokens / 1e3:.3g} k"


def _sizes(times: int) -> Iterator[Who]:
    tokens = FEWEST
    while tokens <= MOST:
        yield static(tokens, times)
        tokens *= 2


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
