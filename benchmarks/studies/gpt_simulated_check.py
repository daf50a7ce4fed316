"""How well the simulated study of language models fits what was rehearsed: by fixed size, and by question."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

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
)
from benchmarks.studies.gpt_page import runs_of as rehearsed_answers
from benchmarks.studies.gpt_simulated_fit import (
    RULE,
    RULES,
    SIZES,
    Rule,
    error,
    fit,
    halves,
    mean_losses,
    measured_noise,
)
from benchmarks.studies.gpt_simulated_runs import TUNED, Contest, Ratio, Run, Runs, Who, static
from benchmarks.studies.gpt_simulated_worlds import PAPER
from benchmarks.studies.rehearsed_cells import Name
from benchmarks.workloads.text import CONTEXT
from dynamix_ps.rehearsal.outcome import Outcome
from dynamix_ps.sim.contest.comparison import Array
from dynamix_ps.sim.scenario.parts import Training

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


def rule_row(rule: Rule, training: Training, unseen: Mapping[int, Array]) -> dict[str, str]:
    return {
        "learning-rate rule": f"`{rule}`" + ", taken" * (rule == RULE),
        "error of the tokens to a loss": f"{error(training, unseen, rule):.0%}",
    }


def size_row(one: Fit) -> dict[str, str]:
    over, seconds = ([_number(value) for value in values] for values in (one.over_tuned, one.seconds))
    return {
        "tokens of an iteration": f"{one.tokens:,}",
        "targets reached": str(one.targets),
        f"time over that of {TUNED:,}, rehearsed": over[0],
        "simulated": over[1],
        "by a fit without this size": over[2],
        "simulated seconds over rehearsed ones": seconds[0],
    }


def loss_row(one: Fit) -> dict[str, str]:
    rehearsed, simulated, left_out = map(_number, one.loss)
    return {
        "tokens of an iteration": f"{one.tokens:,}",
        "loss after all tokens, rehearsed": rehearsed,
        "simulated": simulated,
        "by a fit without this size": left_out,
    }


def _number(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "-"


def check_row(rehearsed: Answer, simulated: Ratio) -> dict[str, str]:
    question, ratio = rehearsed.question, rehearsed.ratio
    assert ratio is not None  # the rehearsals have all their pairs
    return {
        "contender / reference": f"{question.contender} / {question.reference}",
        "rehearsed": str(Ratio(ratio, rehearsed.misses > 0)),
        "simulated": str(simulated),
        "simulated over rehearsed": f"{simulated.estimate.value / ratio.value:.2f}",
    }
