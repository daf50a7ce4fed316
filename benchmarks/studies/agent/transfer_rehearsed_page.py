"""The page of the study of transfer on real gradients: every question, over all directions and by each."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report.page import draw, markdown, update_page
from benchmarks.studies.agent.answers import Runs
from benchmarks.studies.agent.cells import STATICS
from benchmarks.studies.agent.page import figures_of, in_words, table_of, title
from benchmarks.studies.agent.transfer_rehearsed_cells import CHOOSING, CLUSTERS, DIRECTIONS, QUESTIONS, targets
from benchmarks.studies.rehearsed_cells import Name
from dynamix_ps.rehearsal.outcome import RehearsalOutcome
from dynamix_ps.sim.contest.comparison import Estimate
from dynamix_ps.sim.contest.pictures import dots

STEM = "transfer-rehearsed"


@dataclass(frozen=True, slots=True)
class Summary:
    """The runs of one contender in one direction on one cluster.

    Attributes:
        batch: samples of all workers in an iteration, mean.
        time_s: seconds to the targets that count, geometric mean.
        missed: targets, of those that all runs have together: `asked`.
        loss: of the test set after all samples, mean.
    """

    direction: str
    cluster: str
    contender: str
    seeds: int
    batch: float
    time_s: float
    missed: int
    asked: int
    loss: float


def whole(outcomes: Mapping[Name, RehearsalOutcome], every: Collection[Name]) -> dict[Name, RehearsalOutcome]:
    """Of the directions and clusters all of whose runs have ended, so that everybody is there with the same seeds."""
    partly = {name[:2] for name in every if name not in outcomes}
    return {name: one for name, one in outcomes.items() if name[:2] not in partly}


def runs_of(outcomes: Mapping[Name, RehearsalOutcome]) -> Runs:
    """With the targets of the study."""
    return Runs(outcomes, targets())


def summaries(outcomes: Mapping[Name, RehearsalOutcome]) -> Iterator[Summary]:
    """Of all that have runs."""
    runs = runs_of(outcomes)
    for direction in DIRECTIONS:
        losses = targets()[direction.workload]
        for cluster in CLUSTERS:
            for contender in (*CHOOSING, *STATICS):
                found = {
                    name: one for name, one in outcomes.items() if name[:3] == (direction.workload, cluster, contender)
                }
                ended = [one for one in found.values() if one.curve]
                if ended:
                    yield Summary(
                        direction=direction.title,
                        cluster=cluster,
                        contender=contender,
                        seeds=len(found),
                        batch=float(np.mean([one.curve[-1].samples / one.iterations for one in ended])),
                        time_s=math.exp(float(np.mean([runs.log_s(name) for name in found]))),
                        missed=sum(one.reached(loss) is None for one in found.values() for loss in losses),
                        asked=len(found) * len(losses),
                        loss=float(np.mean([one.curve[-1].values["loss"] for one in ended])),
                    )


def write_page(folder: Path, outcomes: Mapping[Name, RehearsalOutcome], told: str) -> None:
    """Renew the figures and the picture; `told` is the first line. Raises UsageError if the page cannot be written."""
    runs = runs_of(outcomes)
    parts = [
        told,
        "### Over all directions",
        markdown(table_of([runs.answer(question, _workloads()) for question in QUESTIONS])),
        "### By direction",
        markdown(list(by_direction(runs))),
        f"![Ratios by direction]({STEM}.png)",
        "### Every contender",
        markdown([_row(one) for one in summaries(outcomes)]),
    ]
    draw(folder / f"{STEM}.png", lambda figure: draw_ratios(figure, runs))
    update_page(folder / f"{STEM}.md", "\n\n".join(parts) + "\n")


def by_direction(runs: Runs) -> Iterator[dict[str, str]]:
    """The ratio of every question in every direction that has one."""
    for direction in DIRECTIONS:
        answers = [runs.answer(question, (direction.workload,)) for question in QUESTIONS]
        if answers[0].pairs:
            yield {
                "direction": direction.title,
                "workload": f"`{direction.workload}`",
                "pairs": str(answers[0].pairs),
                **{title(answer.question): in_words(answer.ratio) for answer in answers},
            }


def _workloads() -> tuple[str, ...]:
    return tuple(direction.workload for direction in DIRECTIONS)


def _row(one: Summary) -> dict[str, str]:
    return {
        "direction": one.direction,
        "cluster": f"`{one.cluster}`",
        "who": f"`{one.contender}`",
        "seeds": str(one.seeds),
        "samples of an iteration": f"{one.batch:,.0f}",
        "s to the targets": f"{one.time_s:.1f}",
        "targets missed": f"{one.missed} of {one.asked}",
        "test loss at the end": f"{one.loss:.3f}",
    }


def draw_ratios(figure: Any, runs: Runs) -> None:
    """A line for every direction with an answer, a mark for every question."""
    known = [one for one in DIRECTIONS if runs.answer(QUESTIONS[0], (one.workload,)).ratio is not None]
    unknown = Estimate(math.nan, math.nan, math.nan)
    columns = {
        title(question): [runs.answer(question, (one.workload,)).ratio or unknown for one in known]
        for question in QUESTIONS
    }
    label = "time to the targets over that of the other (left is better)"
    dots(figure, [one.title for one in known], columns, label, "Simulated clock; paired seeds, 95 % interval")


def figures(outcomes: Mapping[Name, RehearsalOutcome]) -> dict[str, Any]:
    """For JSON."""
    runs = runs_of(outcomes)
    return {
        "answers": figures_of([runs.answer(question, _workloads()) for question in QUESTIONS]),
        "by direction": {
            one.title: figures_of([runs.answer(question, (one.workload,)) for question in QUESTIONS])
            for one in DIRECTIONS
        },
        "contenders": [dataclasses.asdict(one) for one in summaries(outcomes)],
    }
