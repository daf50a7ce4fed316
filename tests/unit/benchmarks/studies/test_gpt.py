"""The study of language models: its cells, its answers, its page. No training runs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.studies import rehearsed_study
from benchmarks.studies.agent.answers import LEAST_PAIRS, MET, MISSED, OPEN
from benchmarks.studies.language_models import gpt
from benchmarks.studies.language_models.gpt_cells import (
    AGENT,
    CHOOSING,
    CLUSTERS,
    FIRST_SIZE,
    GOODPUT,
    NAME,
    PAPER_SEQUENCES,
    PAPER_TOKENS,
    QUESTIONS,
    SEEDS,
    STATICS,
    SWEEP,
    SWEEP_SEEDS,
    TARGETS,
    cells,
)
from benchmarks.studies.language_models.gpt_page import draw_times, runs_of, summaries
from benchmarks.studies.rehearsed_cells import Cell, Name, Table, row_of
from benchmarks.workloads.text import CONTEXT
from dynamix_ps.config.rules import findings
from dynamix_ps.policy.registry import make_policy
from dynamix_ps.rehearsal.outcome import Evaluated, RehearsalOutcome
from dynamix_ps.sim.cluster.cost import compute_s
from dynamix_ps.sim.cluster.parameters import parameters_of
from dynamix_ps.sim.cluster.traces import Conditions

CORE_MINUTES = 120  # of the whole study: an hour on two cores
SPEEDS = {name: 10.0 for name in STATICS | SWEEP} | {"static-1024": 20.0, GOODPUT: 40.0, AGENT: 50.0}


def outcome(samples_per_s: float, luck: float = 1.0, least: float = 1.5) -> RehearsalOutcome:
    """The loss falls from 3 in 20 steps of 64 samples, one iteration each, `luck` times as fast, to `least` at best."""
    losses = {step: max(3 - 0.08 * step * luck, least) for step in range(1, 21)}
    curve = tuple(
        Evaluated(64 * step / samples_per_s, 64 * step, {"loss": loss, "bpb": loss / math.log(2)})
        for step, loss in losses.items()
    )
    return RehearsalOutcome(curve[-1].time_s, 20, 3, 1, False, curve, {"loss": False, "bpb": False})


def made_up(name: Name) -> RehearsalOutcome:
    missing = name.contender in (PAPER_TOKENS, "static-16384")
    return outcome(SPEEDS.get(name.contender, 25.0), 1 + 0.02 * (name.seed % 3), 2.9 if missing else 1.5)


@pytest.fixture
def outcomes(tmp_path: Path) -> dict[Name, RehearsalOutcome]:
    return {cell.name: made_up(cell.name) for cell in cells(False, tmp_path)}


def test_every_cell_is_there_once_and_can_be_made(tmp_path: Path) -> None:
    every = cells(False, tmp_path / "one")
    names = [cell.name for cell in every]
    per_cluster = SEEDS * (len(CHOOSING) + len(STATICS)) + SWEEP_SEEDS * len(SWEEP)
    assert len(set(names)) == len(names) == len({cell.key for cell in every}) == len(CLUSTERS) * per_cluster
    for cell in {cell.name.contender: cell for cell in every}.values():
        assert not list(findings(cell.config)), cell.name
        make_policy(cell.config, len(cell.config.cluster.workers), np.random.default_rng(0))
    assert [cell.key for cell in cells(False, tmp_path / "two")] == [cell.key for cell in every]
    seeds = [{name.seed for name in names if name.scenario == one} for one in CLUSTERS]
    assert not set.intersection(*seeds)


def test_what_is_quick_is_a_part_of_the_whole_and_pairs_come_seed_by_seed(tmp_path: Path) -> None:
    every, quick = ({cell.name: cell.key for cell in cells(one, tmp_path)} for one in (False, True))
    assert quick.items() <= every.items()
    assert {name.contender for name in quick} == {*CHOOSING, *STATICS} and len({name[:2] for name in quick}) == 1
    numbers = [name.seed % 100 for name in every]
    assert numbers == sorted(numbers)


def test_the_study_keeps_its_budget_and_every_bar_gets_its_pairs(tmp_path: Path) -> None:
    assert len(cells(False, tmp_path)) * rehearsed_study.EXPECTED_S <= CORE_MINUTES * 60
    assert {question.bar.limit for question in QUESTIONS if question.bar} == {0.7, 1.0}
    for question in QUESTIONS:
        assert question.seeds * len(question.scenarios) >= LEAST_PAIRS


def test_both_readings_of_the_papers_space(tmp_path: Path) -> None:
    """Its bounds count tokens or sequences; the rate is that of `lr_rule` at the first sizes of either."""
    found = {cell.name.contender: cell.config for cell in cells(True, tmp_path)}
    tokens, sequences = found[PAPER_TOKENS], found[PAPER_SEQUENCES]
    assert (tokens.batch.unit, tokens.batch.min, tokens.batch.max) == ("tokens", CONTEXT, 1024)
    assert (sequences.batch.unit, sequences.batch.min, sequences.batch.max) == ("samples", 32, 1024)
    assert tokens.initial_sizes() == (FIRST_SIZE,) * 8 and sequences.initial_sizes() == (32,) * 8
    factors = [float(one.command[one.command.index("--lr-factor") + 1]) for one in (tokens, sequences)]
    assert factors == [1.0, pytest.approx(math.sqrt(32 * CONTEXT / FIRST_SIZE))]
    assert found[AGENT].batch.unit == "tokens" and 8 * found[AGENT].batch.max == 1 << 17
    assert found["static-1024"].policy.sizes == (1024,) * 8
    for config in found.values():
        assert config.command[config.command.index("--schedule") + 1] == "cosine"


def test_machines_are_the_same_whatever_sizes_count(tmp_path: Path) -> None:
    found = {cell.name.contender: cell.scenario for cell in cells(True, tmp_path)}
    times = [
        compute_s(parameters, Conditions(parameters, np.random.default_rng(0)), np.full((1, 8), size, np.float32))
        for parameters, size in (
            (parameters_of([found[PAPER_TOKENS]]), 32 * CONTEXT),
            (parameters_of([found[PAPER_SEQUENCES]]), 32),
        )
    ]
    assert times[0] == pytest.approx(times[1], rel=1e-5)
    assert times[0].max() / times[0].min() > 3  # mixed speeds


def test_verdicts_come_from_paired_times(outcomes: dict[Name, RehearsalOutcome]) -> None:
    runs = runs_of(outcomes)
    answers = {(one.contender, one.reference): runs.answer(one, (NAME,)) for one in QUESTIONS}
    tuned, goodput = (answers[AGENT, other] for other in ("best static", GOODPUT))
    assert runs.best_static(NAME, CLUSTERS[0]) == "static-1024"
    assert tuned.ratio is not None and tuned.ratio.value == pytest.approx(20 / 50)
    assert (tuned.pairs, tuned.verdict, goodput.verdict) == (2 * SEEDS, MET, MET)
    slow = outcomes | {name: outcome(30.0) for name in outcomes if name.contender == AGENT}
    missed = runs_of(slow).answer(QUESTIONS[1], (NAME,))
    assert missed.verdict == MISSED
    few = {name: one for name, one in outcomes.items() if name.seed % 100 < 2}
    assert runs_of(few).answer(QUESTIONS[0], (NAME,)).verdict == OPEN
    paper = answers[PAPER_TOKENS, "best static"]
    assert paper.misses == paper.pairs and paper.ratio is not None and paper.ratio.value > 1


def test_contenders_are_summed_up_with_their_batches(outcomes: dict[Name, RehearsalOutcome]) -> None:
    found = {(one.cluster, one.contender): one for one in summaries(outcomes)}
    assert len(found) == len(CLUSTERS) * len((*CHOOSING, *STATICS, *SWEEP))
    ours, wide = found[CLUSTERS[0], AGENT], found[CLUSTERS[1], "static-16384"]
    assert ours.tokens == 64 * CONTEXT and ours.seeds == SEEDS and ours.missed == 0
    assert ours.time_s < found[CLUSTERS[0], GOODPUT].time_s
    assert wide.missed == SWEEP_SEEDS * len(TARGETS) and wide.bits == pytest.approx(2.9 / math.log(2))
    sizes = [one.contender for one in summaries(outcomes) if one.cluster == CLUSTERS[0]][len(CHOOSING) :]
    assert sizes == [f"static-{128 << power}" for power in range(8)]


def test_the_picture_has_a_line_and_a_mark_per_cluster(outcomes: dict[Name, RehearsalOutcome]) -> None:
    from matplotlib.figure import Figure

    figure = Figure()
    draw_times(figure, list(summaries(outcomes)))
    for axes in figure.axes:
        (fixed, *chosen) = axes.lines
        assert len(fixed.get_xdata()) == len(STATICS | SWEEP)
        assert [line.get_label() for line in chosen] == list(CHOOSING)


@pytest.mark.slow
def test_the_page_grows_with_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_missing(missing: list[Cell], table: Table, jobs: int, limit_s: float, tell: Any) -> int:
        for cell in missing[: math.ceil(limit_s)]:
            table.add(row_of(cell, made_up(cell.name), took_s=30.0))
        return 0

    monkeypatch.setattr(rehearsed_study, "run_missing", run_missing)
    page = Path(__file__).parents[4] / "benchmarks" / "results" / "gpt.md"
    (tmp_path / "gpt.md").write_text(page.read_text())
    file = tmp_path / "answers.json"
    command = ["--out", str(tmp_path), "--json", str(file), "--jobs", "2"]
    assert gpt.main([*command, "--limit-s", "0"]) == 0
    assert "there is nothing to tell yet" in capsys.readouterr().out and not file.exists()
    assert gpt.main([*command, "--quick", "--limit-s", "9"]) == 0
    text = (tmp_path / "gpt.md").read_text()
    assert "9 of 196 cells, 4 minutes of one core" in text and "The study is not complete" in text
    assert "| `h-level-8` | `static-1024`, best static | 1 | 4,096 |" in text
    assert (tmp_path / "gpt.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    assert gpt.main([*command, "--limit-s", "18"]) == 0
    assert "187 of 196 runs are left: about 47 minutes" in capsys.readouterr().out
    shown = json.loads(file.read_text())
    assert (shown["cells"], shown["of"]) == (18, 196)
    assert shown["answers"][0]["question"] == "ppo / best static" and shown["answers"][0]["verdict"] == OPEN
    assert {one["contender"] for one in shown["contenders"]} == {*CHOOSING, *STATICS, *SWEEP}
