"""The page of the study of the agent: every question with its answer, and the same by workload and by cluster."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from benchmarks.report.page import draw, markdown, update_page, where
from benchmarks.studies.agent.answers import OPEN, Answer, Runs
from benchmarks.studies.agent.cells import QUESTIONS, WORKLOADS, Question
from benchmarks.studies.agent.sizes import FIXED_SIZES, SCENARIOS_OF_SIZES, not_bracketed
from dynamix_ps.sim.contest.comparison import Estimate
from dynamix_ps.sim.contest.pictures import dots

STEM = "agent"
COMMAND = "python -m benchmarks.studies.agent.worth --json FILE"
NOTHING = "-"
Table = list[dict[str, str]]


def write_page(folder: Path, runs: Runs, done: int, cells: int, core_s: float) -> Path:
    """Renew the figures and pictures of the page. `core_s`: what all runs took.

    Raises UsageError if the page cannot be written.
    """
    answers = [runs.answer(question, tuple(WORKLOADS)) for question in QUESTIONS]
    told = (
        f"`{COMMAND}`: {done:,} of {cells:,} cells, {core_s / 3600:.1f} hours of one core on {where()}. "
        "Real gradients, simulated clock."
    )
    if done < cells:
        told += " The study is not complete: verdicts are of the cells that there are."
    bars = [answer for answer in answers if answer.question.bar is not None]
    counted = {word: sum(answer.verdict == word for answer in bars) for word in ("met", "missed", OPEN)}
    told += f"\n\nOf {len(bars)} bars {', '.join(f'{number} are {word}' for word, number in counted.items())}."
    strata = len(SCENARIOS_OF_SIZES) * len(WORKLOADS)
    told += (
        f"\n\nIn {strata - not_bracketed(runs)} of {strata} pairs of a cluster and a workload the best fixed size lies "
        "between others that were tried, or at a bound of the workload."
    )
    parts = [f"### {part.capitalize()}\n\n{markdown(table_of(list(some)))}" for part, some in _by_part(answers)]
    parts.append(f"### Fixed sizes: seconds to the targets\n\n{markdown(sizes_table(runs))}")
    picture = folder / f"{STEM}.png"
    if _draw_answers(picture, answers):
        parts.append(f"![Every question: the ratio and its two parts]({picture.name})")
    page = folder / f"{STEM}.md"
    blocks = ("\n\n".join([told, *parts]), markdown(by_workload(runs)), markdown(by_scenario(runs)))
    update_page(page, *(f"{block}\n" for block in blocks))
    return page


def _by_part(answers: Sequence[Answer]) -> Iterator[tuple[str, Iterator[Answer]]]:
    yield from groupby(answers, key=lambda answer: answer.question.part)


def table_of(answers: Sequence[Answer]) -> Table:
    """One row per question."""
    return [
        {
            "contender / reference": title(answer.question),
            "ratio": in_words(answer.ratio),
            "samples": in_words(answer.samples),
            "clock": in_words(answer.clock),
            "pairs": str(answer.pairs),
            "learn the same": str(answer.alike),
            "miss a target": str(answer.misses),
            "would show": _would_show(answer.shown),
            "bar": str(answer.question.bar or NOTHING),
            "verdict": f"**{answer.verdict}**" if answer.verdict else NOTHING,
        }
        for answer in answers
    ]


def by_workload(runs: Runs) -> Table:
    """The ratio of every question, one column per workload."""
    return [
        {"contender / reference": title(question), "clusters": ", ".join(question.scenarios)}
        | {workload: in_words(runs.answer(question, (workload,)).ratio) for workload in WORKLOADS}
        for question in QUESTIONS
    ]


def by_scenario(runs: Runs) -> Table:
    """The ratio and its parts on every cluster, for the questions that are about several."""
    several = (question for question in QUESTIONS if len(question.scenarios) > 1)
    each = (dataclasses.replace(question, scenarios=(one,)) for question in several for one in question.scenarios)
    rows = []
    for question in each:
        (cells,) = table_of([runs.answer(question, tuple(WORKLOADS))])
        kept = ("contender / reference", "ratio", "samples", "clock", "pairs", "miss a target", "would show")
        rows.append({"cluster": question.scenarios[0]} | {name: cells[name] for name in kept})
    return rows


def sizes_table(runs: Runs) -> Table:
    """Geometric means over seeds and targets, the best size of every workload on every cluster in bold."""
    rows = []
    for scenario in SCENARIOS_OF_SIZES:
        for workload in WORKLOADS:
            times = runs.fixed_sizes(workload, scenario)
            best = runs.best_static(workload, scenario)
            told = {name: f"{math.exp(log_s):.1f}" for name, log_s in times.items()}
            cells = {
                f"x{factor:g}": f"**{told[name]}**" if name == best else told.get(name, NOTHING)
                for name, factor in FIXED_SIZES.items()
            }
            rows.append({"cluster": scenario, "workload": workload} | cells)
    tried = [name for name in rows[0] if any(row[name] != NOTHING for row in rows)]
    return [{name: row[name] for name in tried} for row in rows]


def title(question: Question) -> str:
    """The contender over its reference."""
    return f"{question.contender} / {question.reference}"


def _would_show(shown: float) -> str:
    """The smallest difference that so many pairs show; one beyond the whole says that they are too few."""
    if not math.isfinite(shown):
        return NOTHING
    return f"{100 * shown:.2g} %" if shown < 1 else "over 100 %"


def in_words(estimate: Estimate | None) -> str:
    if estimate is None:
        return NOTHING
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def figures_of(answers: Sequence[Answer]) -> list[Mapping[str, object]]:
    """For --json."""
    return [
        {
            "part": answer.question.part,
            "question": title(answer.question),
            "scenarios": answer.question.scenarios,
            "bar": str(answer.question.bar or ""),
            "verdict": answer.verdict,
            "pairs": answer.pairs,
            "alike": answer.alike,
            "misses": answer.misses,
            "shown": answer.shown if math.isfinite(answer.shown) else None,
        }
        | {
            name: dataclasses.asdict(one) if (one := getattr(answer, name)) else None
            for name in ("ratio", "samples", "clock")
        }
        for answer in answers
    ]


def _draw_answers(file: Path, answers: Sequence[Answer]) -> bool:
    """A line for each question with an answer: the ratio and its two parts. Whether there is one."""
    known = [answer for answer in answers if answer.ratio is not None]
    if not known:
        return False
    unknown = Estimate(math.nan, math.nan, math.nan)
    columns = {
        "ratio": [answer.ratio or unknown for answer in known],
        "samples part": [answer.samples or unknown for answer in known],
        "clock part": [answer.clock or unknown for answer in known],
    }
    rows = [name_in_picture(answer.question) for answer in known]
    label = "time over that of the reference (left is better)"
    heading = "Simulated clock; paired seeds, 95 % interval"
    draw(file, lambda figure: dots(figure, rows, columns, label, heading))
    return True


def name_in_picture(question: Question) -> str:
    """The contenders, and which of the questions about them it is: by the clusters."""
    about = question.scenarios[0] if len(question.scenarios) == 1 else f"{question.scenarios[0]} and others"
    return f"{title(question)} ({about})"
