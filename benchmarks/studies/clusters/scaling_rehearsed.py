"""64 and 256 workers with real gradients, whose links and speeds change all the time (rehearsed).

    python -m benchmarks.studies.clusters.scaling_rehearsed --json FILE [--quick] [--limit-s S]

The CNN of the study of the agent on Fashion-MNIST, on the clusters of unsteady.py. Gradients are real, the clock is
simulated (docs/rehearsal.md); docs/evaluation.md has the protocol. The noise of this training's gradient does not grow
with the cluster, so every worker computes a few samples, and a sample takes as much longer as there are more workers
(agent/clusters.py). Who takes part:

    ppo       the policy that ships
    model     the model of the cluster behind it, nothing learned
    static    the first sizes; static-2: twice them. The better one counts as tuned

Every run is a row of scaling-rehearsed/cells.csv, written as soon as it ends; the same command goes on from there. The
page is made from all rows. `--quick` runs the first seed of 64 workers on one cluster. Delete the rows after a change
of code that decides runs: policies, simulator, rehearsal.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report.page import draw, markdown, update_page
from benchmarks.studies.agent.answers import Answer, Runs
from benchmarks.studies.agent.cells import BEST_STATIC, NOISE_SCALES, Question
from benchmarks.studies.agent.cells import WORKLOADS as SHORTENED
from benchmarks.studies.agent.clusters import cluster_for
from benchmarks.studies.agent.page import figures_of, table_of
from benchmarks.studies.clusters.unsteady import unsteady
from benchmarks.studies.rehearsed_cells import Cell, Name, Workplace, cell_of
from benchmarks.studies.rehearsed_study import RehearsedStudy
from benchmarks.studies.trainings import untrained
from benchmarks.suite.contenders import CONTENDERS, Contender
from benchmarks.suite.workloads import Workload
from dynamix_ps.rehearsal.outcome import EvaluationTarget, RehearsalOutcome
from dynamix_ps.sim.contest.pictures import dots
from dynamix_ps.sim.scenario.load import Scenario

STEM = "scaling-rehearsed"
WORKLOAD = "fashion-cnn"
FIRST_SIZES = {64: 4, 256: 2}  # samples of each of so many workers
SEEDS = {64: 3, 256: 2}  # of each cluster
BETWEEN = 100  # seeds; no two clusters share one
AGENT, MODEL = "ppo", "model"
STATICS = {"static": 1, "static-2": 2}  # times the first sizes
CLUSTERS = {f"{one.name}-{workers}": (one, workers) for workers in FIRST_SIZES for one in unsteady()}
QUESTIONS = tuple(
    Question(f"{workers} workers", AGENT, reference, tuple(f"{one.name}-{workers}" for one in unsteady()), seeds)
    for workers, seeds in SEEDS.items()
    for reference in (MODEL, BEST_STATIC)
)


def cells(quick: bool, folder: Path) -> list[Cell]:
    """All cells, the smaller cluster first, seed by seed. `folder`: for the policy that has learned nothing."""
    known = contenders(folder)
    every = [
        _cell(Name(WORKLOAD, name, contender, BETWEEN * place + number), known[contender])
        for workers, seeds in SEEDS.items()
        for number in range(seeds)
        for place, (name, (_, size)) in enumerate(CLUSTERS.items())
        if size == workers
        for contender in known
    ]
    return every[: len(known)] if quick else every


def contenders(folder: Path) -> Mapping[str, Contender]:
    """All of them by name."""
    agent = CONTENDERS["ppo"]
    return {
        AGENT: agent,
        MODEL: dataclasses.replace(agent, policy=untrained(folder / "untrained.npz")),
        **dict.fromkeys(STATICS, CONTENDERS["static"]),
    }


def workload_of(workers: int) -> Workload:
    """The training: the learning rate follows the sum of the first sizes, and who is late trains a second epoch."""
    tuned = SHORTENED[WORKLOAD]
    first = FIRST_SIZES[workers]
    rate = tuned.lr["sgd"] * math.sqrt(workers * first / (8 * tuned.batch))
    return tuned.model_copy(update={"batch": first, "min": 1, "lr": {"sgd": rate}, "most_epochs": 2})


def cluster(name: str) -> Scenario:
    """The cluster for the noise of this training, which is the same for any number of workers."""
    scenario, workers = CLUSTERS[name]
    noise_scale = NOISE_SCALES[WORKLOAD] * scenario.n_workers / workers
    found = cluster_for(scenario.with_workers(workers), noise_scale, SHORTENED[WORKLOAD].window)
    return found.model_copy(update={"name": name})


def _cell(name: Name, chosen: Contender) -> Cell:
    _, workers = CLUSTERS[name.scenario]
    first = FIRST_SIZES[workers]
    if name.contender in STATICS:
        chosen = dataclasses.replace(chosen, batch=STATICS[name.contender] * first)
    return cell_of(name, Workplace(workload_of(workers), cluster(name.scenario), (first,) * workers), chosen)


def runs_of(outcomes: Mapping[Name, RehearsalOutcome]) -> Runs:
    """With the targets of the study of the agent; the best of STATICS counts as tuned."""
    thresholds = SHORTENED[WORKLOAD].thresholds
    targets = [EvaluationTarget("loss", value, higher_is_better=False) for value in thresholds]
    return Runs(outcomes, {WORKLOAD: targets}, tuple(STATICS))


def answers_of(runs: Runs) -> list[Answer]:
    """To the questions, and by cluster."""
    single = [dataclasses.replace(one, scenarios=(name,)) for one in QUESTIONS for name in one.scenarios]
    return [runs.answer(question, (WORKLOAD,)) for question in (*QUESTIONS, *single)]


def write_page(out: Path, outcomes: Mapping[Name, RehearsalOutcome], told: str) -> None:
    """Renew the figures and the picture of the page. Raises UsageError if the page cannot be written."""
    answers = answers_of(runs_of(outcomes))
    update_page(out / f"{STEM}.md", f"{told}\n\n{markdown(table_rows(answers))}\n")
    draw(out / f"{STEM}.png", lambda figure: picture(figure, answers))


def table_rows(answers: Sequence[Answer]) -> list[dict[str, str]]:
    """One row per question; there are no bars."""
    unasked = ("bar", "verdict")
    return [
        {"clusters": ", ".join(answer.question.scenarios)}
        | {name: value for name, value in row.items() if name not in unasked}
        for answer, row in zip(answers, table_of(answers), strict=True)
    ]


def picture(figure: Any, answers: Sequence[Answer]) -> None:
    """The ratio and its two parts, where all pairs have them."""
    whole = [one for one in answers if one.ratio and one.samples and one.clock]
    names = [
        f"{one.question.contender} / {one.question.reference}: {', '.join(one.question.scenarios)}" for one in whole
    ]
    columns = {part: [getattr(one, part) for one in whole] for part in ("ratio", "samples", "clock")}
    title = "Time to three targets of the test loss: the ratio and its two parts (simulated clock)"
    dots(figure, names, columns, "ratio over paired seeds (left: the first is faster)", title)


main = RehearsedStudy(
    module="clusters.scaling_rehearsed",
    about=__doc__,
    quick="the first seed of 64 workers on one cluster",
    cells=lambda quick, kept, scratch: cells(quick, scratch),
    write_page=write_page,
    figures=lambda outcomes: {"answers": figures_of(answers_of(runs_of(outcomes)))},
).main


if __name__ == "__main__":
    sys.exit(main())
