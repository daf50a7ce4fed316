"""The page of the study of language models: every question with its answer, every contender with its batches."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report.page import draw, markdown, update_page
from benchmarks.studies.agent.answers import Runs
from benchmarks.studies.agent.page import figures_of, table_of
from benchmarks.studies.language_models.gpt_cells import (
    CHOOSING,
    CLUSTERS,
    NAME,
    QUESTIONS,
    STATICS,
    SWEEP,
    TARGETS,
    WORKERS,
)
from benchmarks.studies.rehearsed_cells import Name
from benchmarks.workloads.text import CONTEXT
from dynamix_ps.rehearsal.outcome import RehearsalOutcome

STEM = "gpt"
SIZES = dict(sorted((STATICS | SWEEP).items(), key=lambda one: one[1]))


@dataclass(frozen=True, slots=True)
class Summary:
    """The runs of one contender on one cluster.

    Attributes:
        tokens: of all workers in an iteration, mean.
        time_s: seconds to the targets that count, geometric mean.
        missed: targets, of all runs.
        bits: per byte of the test set after all tokens, mean.
    """

    cluster: str
    contender: str
    seeds: int
    tokens: float
    time_s: float
    missed: int
    bits: float


def runs_of(outcomes: Mapping[Name, RehearsalOutcome]) -> Runs:
    """With the targets of the study; the best of STATICS counts as tuned."""
    return Runs(outcomes, {NAME: TARGETS}, tuple(STATICS))


def summaries(outcomes: Mapping[Name, RehearsalOutcome]) -> Iterator[Summary]:
    """Of all that have a run: first those that choose, then fixed sizes by size."""
    runs = runs_of(outcomes)
    for cluster in CLUSTERS:
        for contender in (*CHOOSING, *SIZES):
            found = {name: one for name, one in outcomes.items() if name[1:3] == (cluster, contender)}
            ended = [one for one in found.values() if one.curve]
            if ended:
                yield Summary(
                    cluster=cluster,
                    contender=contender,
                    seeds=len(found),
                    tokens=float(np.mean([CONTEXT * one.curve[-1].samples / one.iterations for one in ended])),
                    time_s=math.exp(float(np.mean([runs.log_s(name) for name in found]))),
                    missed=sum(one.reached(target) is None for one in found.values() for target in TARGETS),
                    bits=float(np.mean([one.curve[-1].values["bpb"] for one in ended])),
                )


def write_page(folder: Path, outcomes: Mapping[Name, RehearsalOutcome], told: str) -> None:
    """Renew the figures and the picture; `told` is the first line. Raises UsageError if the page cannot be written."""
    runs = runs_of(outcomes)
    answers = [runs.answer(question, (NAME,)) for question in QUESTIONS]
    found = list(summaries(outcomes))
    parts = [
        told,
        "### Questions",
        markdown(table_of(answers)),
        "### Every contender",
        markdown([_row(one, runs) for one in found]),
        f"![Simulated seconds to the targets by tokens of an iteration]({STEM}.png)",
    ]
    draw(folder / f"{STEM}.png", lambda figure: draw_times(figure, found))
    update_page(folder / f"{STEM}.md", "\n\n".join(parts) + "\n")


def _row(one: Summary, runs: Runs) -> dict[str, str]:
    best = one.contender == runs.best_static(NAME, one.cluster)
    return {
        "cluster": f"`{one.cluster}`",
        "who": f"`{one.contender}`" + ", best static" * best,
        "seeds": str(one.seeds),
        "tokens of an iteration": f"{one.tokens:,.0f}",
        "s to the targets": f"{one.time_s:.1f}",
        "targets missed": f"{one.missed} of {one.seeds * len(TARGETS)}",
        "bits per byte at the end": f"{one.bits:.2f}",
    }


def draw_times(figure: Any, found: Sequence[Summary]) -> None:
    """Seconds over tokens of an iteration on every cluster: a line through fixed sizes, a mark for who chooses."""
    places = figure.subplots(1, len(CLUSTERS), sharey=True, squeeze=False)[0]
    figure.set_size_inches(10, 4)
    for axes, cluster in zip(places, CLUSTERS, strict=True):
        here = {one.contender: one for one in found if one.cluster == cluster}
        fixed = [here[name] for name in SIZES if name in here]
        axes.plot([one.tokens for one in fixed], [one.time_s for one in fixed], "o-", color="#777777", label="static")
        for number, name in enumerate(one for one in CHOOSING if one in here):
            axes.plot(here[name].tokens, here[name].time_s, "os^Dv"[number], color=f"C{number}", label=name)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_title(cluster)
        axes.set_xlabel(f"tokens of an iteration, {WORKERS} workers")
    places[0].set_ylabel("simulated seconds to the targets")
    places[-1].legend(fontsize="small")


def figures(outcomes: Mapping[Name, RehearsalOutcome]) -> dict[str, Any]:
    """For JSON."""
    runs = runs_of(outcomes)
    return {
        "answers": figures_of([runs.answer(question, (NAME,)) for question in QUESTIONS]),
        "contenders": [dataclasses.asdict(one) for one in summaries(outcomes)],
    }
