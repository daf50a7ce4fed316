"""The study of transfer on real gradients: the policies that it trains, its cells, its answers, its page."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.studies import rehearsed_study
from benchmarks.studies.agent import transfer_rehearsed, transfer_rehearsed_cells
from benchmarks.studies.agent.answers import MET
from benchmarks.studies.agent.cells import STATICS
from benchmarks.studies.agent.families import SCENARIOS, families
from benchmarks.studies.agent.transfer_rehearsed_cells import (
    AWAY,
    CHOOSING,
    CLUSTERS,
    DIRECTIONS,
    HOME,
    MODEL,
    QUESTIONS,
    SEEDS,
    SETTINGS,
    SHIPS,
    VGG,
    VGG_ADAM,
    VGG_WIDE,
    WIDER,
    WORKLOADS,
    are_known,
    cells,
    train_policies,
)
from benchmarks.studies.agent.transfer_rehearsed_page import draw_ratios, runs_of, summaries, whole
from benchmarks.studies.rehearsed_cells import Cell, Name, Table, digest_file, row_of
from dynamix_ps.config.rules import findings
from dynamix_ps.errors import UsageError
from dynamix_ps.policy.ppo.policy_file import load_policy
from dynamix_ps.policy.registry import make_policy
from dynamix_ps.rehearsal.outcome import Evaluated, RehearsalOutcome
from dynamix_ps.sim.cluster.cost import compute_s
from dynamix_ps.sim.cluster.parameters import parameters_of
from dynamix_ps.sim.cluster.traces import Conditions
from dynamix_ps.sim.scenario.load import dump_scenario

CORE_MINUTES = 60
TINY = dataclasses.replace(SETTINGS, total_windows=64, environments=4, n_workers=(2,), rollout_windows=8)
SPEEDS = {HOME: 40.0, AWAY: 39.0, SHIPS: 40.0, MODEL: 40.0, "static-half": 10.0, "static": 20.0, "static-double": 15.0}
PER_DIRECTION = SEEDS * (len(CHOOSING) + len(STATICS))


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out") / "transfer-rehearsed"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(transfer_rehearsed_cells, "SETTINGS", TINY)
        train_policies(folder)
    return folder


def made_up(name: Name) -> RehearsalOutcome:
    """The loss falls from 3 to 1 in 20 iterations of 64 samples, a little faster with some seeds."""
    luck = 1 + 0.02 * (name.seed % 3)
    curve = tuple(
        Evaluated(64 * step / SPEEDS[name.contender], 64 * step, {"loss": 3 - 0.1 * step * luck})
        for step in range(1, 21)
    )
    return RehearsalOutcome(curve[-1].time_s, 20, 3, 1, False, curve, {"loss": False})


@pytest.fixture
def outcomes(policies: Path, tmp_path: Path) -> dict[Name, RehearsalOutcome]:
    return {cell.name: made_up(cell.name) for cell in cells(False, policies, tmp_path)}


def test_only_policies_without_a_file_are_trained_and_the_same_seed_gives_the_same_weights(
    policies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer_rehearsed_cells, "SETTINGS", TINY)
    kept = {file.name: file.read_bytes() for file in policies.glob("*.npz")}
    assert set(kept) == {f"{name}.npz" for name in families(SCENARIOS)}
    for name, content in kept.items():
        if name != "adam.npz":
            (tmp_path / name).write_bytes(content)
    assert are_known(policies) and not are_known(tmp_path)
    train_policies(tmp_path)
    adam, again = (digest_file(folder / "adam.npz").read_text() for folder in (policies, tmp_path))
    assert adam == again
    assert all((tmp_path / name).read_bytes() == content for name, content in kept.items() if name != "adam.npz")
    first, second = (load_policy(folder / "adam.npz", None) for folder in (policies, tmp_path))
    for name, weights in first.networks.items():
        assert weights.adam is None
        assert np.array_equal(weights.params.flat, second.networks[name].params.flat)


def test_a_policy_that_is_not_that_of_the_kept_rows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_rehearsed_cells, "SETTINGS", TINY)
    digest_file(tmp_path / "adam.npz").write_text("0" * 64)
    with pytest.raises(UsageError, match=r"adam.npz: expected SHA-256 0{64}, found [0-9a-f]{64}: trained again"):
        train_policies(tmp_path)


def test_families_teach_different_policies(policies: Path) -> None:
    stored = [load_policy(file, None).networks for file in policies.glob("*.npz")]
    weights = {b"".join(one.params.flat.tobytes() for one in networks.values()) for networks in stored}
    assert len(weights) == len(families(SCENARIOS))


@pytest.mark.slow
def test_every_cell_is_there_once_and_can_be_made(policies: Path, tmp_path: Path) -> None:
    every = cells(False, policies, tmp_path / "one")
    names = [cell.name for cell in every]
    assert len(set(names)) == len(names) == len({cell.key for cell in every})
    assert len(names) == len(DIRECTIONS) * len(CLUSTERS) * PER_DIRECTION
    for cell in every:
        assert not list(findings(cell.config)), cell.name
        make_policy(cell.config, len(cell.config.cluster.workers), np.random.default_rng(0))
    assert [cell.key for cell in cells(False, policies, tmp_path / "two")] == [cell.key for cell in every]
    assert {name.contender for name in names} == {*CHOOSING, *STATICS}
    seeds = [{name.seed for name in names if name.scenario == one} for one in CLUSTERS]
    assert not set.intersection(*seeds)


def test_every_direction_leads_from_one_family_to_another(policies: Path, tmp_path: Path) -> None:
    every = cells(False, policies, tmp_path)
    files = {cell.name[::2]: cell.config.policy.ppo.file for cell in every}
    for one in DIRECTIONS:
        assert one.home != one.away
        assert {one.home, one.away} <= set(families(SCENARIOS))
        assert Path(str(files[one.workload, HOME])).stem == one.home
        assert Path(str(files[one.workload, AWAY])).stem == one.away
        assert files[one.workload, SHIPS] is None
    pairs = {(one.home, one.away) for one in DIRECTIONS}
    assert ("sgd", "transformer") in pairs and ("transformer", "sgd") in pairs, "there, and back"
    nets = {cell.config.policy.safety.enabled for cell in every if cell.name.contender in (HOME, AWAY, SHIPS)}
    assert nets == {True}, "the policies differ in their weights alone"


def test_what_is_quick_is_a_part_of_the_whole_and_directions_come_one_by_one(policies: Path, tmp_path: Path) -> None:
    every, quick = ({cell.name: cell.key for cell in cells(one, policies, tmp_path)} for one in (False, True))
    assert quick.items() <= every.items()
    assert len(quick) == len(CHOOSING) + len(STATICS) and len({(name.workload, name.seed) for name in quick}) == 1
    groups = [name[:2] for name in every]
    first = list(dict.fromkeys(groups))
    assert groups == [one for one in first for _ in range(PER_DIRECTION)]


def test_the_study_keeps_its_budget_and_the_bar_gets_its_pairs(policies: Path, tmp_path: Path) -> None:
    assert len(cells(False, policies, tmp_path)) * rehearsed_study.EXPECTED_S <= CORE_MINUTES * 60
    assert [question.bar.limit for question in QUESTIONS if question.bar] == [1.05]


def test_the_optimizer_changes_no_machine_and_a_wide_model_makes_every_iteration_as_much_longer(
    policies: Path, tmp_path: Path
) -> None:
    found = {cell.name.workload: cell.scenario for cell in cells(False, policies, tmp_path)}
    assert found[VGG_ADAM] == found[VGG]
    size = np.full((1, 8), 12, np.float32)
    of = [parameters_of([found[name]]) for name in (VGG, VGG_WIDE)]
    times = [compute_s(one, Conditions(one, np.random.default_rng(0)), size) for one in of]
    assert times[1] == pytest.approx(WIDER * times[0], rel=1e-5)
    assert of[1].model_bytes == pytest.approx(WIDER * of[0].model_bytes)
    assert "model_bytes" in dump_scenario(found[VGG_WIDE]), "a rehearsal takes that of the real model otherwise"


def test_workloads_differ_in_what_their_direction_is_about() -> None:
    assert WORKLOADS[VGG_ADAM].optimizer == "adam" and WORKLOADS[VGG_ADAM].model == WORKLOADS[VGG].model
    assert WORKLOADS[VGG_WIDE].optimizer == "sgd" and WORKLOADS[VGG_WIDE].model == "vgg11-slim"
    for one in WORKLOADS.values():
        assert list(one.thresholds) == sorted(one.thresholds, reverse=True) and one.metric == "loss"


def test_a_direction_counts_when_all_of_its_runs_have_ended(outcomes: dict[Name, RehearsalOutcome]) -> None:
    every = list(outcomes)
    assert whole(outcomes, every) == outcomes
    lost = every[3]
    partly = {name: one for name, one in outcomes.items() if name != lost}
    found = whole(partly, every)
    assert {name[:2] for name in outcomes} - {name[:2] for name in found} == {lost[:2]}


def test_answers_come_from_paired_times(outcomes: dict[Name, RehearsalOutcome]) -> None:
    runs = runs_of(outcomes)
    workloads = tuple(WORKLOADS)
    answers = {(one.contender, one.reference): runs.answer(one, workloads) for one in QUESTIONS}
    away = answers[AWAY, HOME]
    assert away.ratio is not None and away.ratio.value == pytest.approx(40 / 39)
    assert (away.pairs, away.verdict) == (len(DIRECTIONS) * len(CLUSTERS) * SEEDS, MET)
    tuned = answers[HOME, "best static"]
    assert tuned.ratio is not None and tuned.ratio.value == pytest.approx(20 / 40)


def test_the_picture_has_a_line_per_direction_that_has_an_answer(outcomes: dict[Name, RehearsalOutcome]) -> None:
    from matplotlib.figure import Figure

    figure = Figure()
    some = {name: one for name, one in outcomes.items() if name.workload in (VGG, VGG_ADAM)}
    draw_ratios(figure, runs_of(some))
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["Transformer to CNN", "SGD to Adam"]
    assert len(list(summaries(some))) == 2 * len(CLUSTERS) * (len(CHOOSING) + len(STATICS))


@pytest.mark.slow
def test_the_page_grows_with_whole_directions(
    policies: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = iter((7, PER_DIRECTION + 3))

    def run_missing(missing: list[Cell], table: Table, jobs: int, limit_s: float, tell: Any) -> int:
        for cell in missing[: next(ends)]:
            table.add(row_of(cell, made_up(cell.name), took_s=30.0))
        return 0

    monkeypatch.setattr(rehearsed_study, "run_missing", run_missing)
    out = policies.parent
    page = Path(__file__).parents[4] / "benchmarks" / "results" / "transfer-rehearsed.md"
    (out / page.name).write_text(page.read_text())
    file = out / "answers.json"
    command = ["--out", str(out), "--json", str(file), "--jobs", "1"]
    assert transfer_rehearsed.main([*command, "--quick"]) == 0
    told = capsys.readouterr().out
    assert "7 of 140 cells" in told and "there is nothing to tell yet" in told and not file.exists()
    assert transfer_rehearsed.main(command) == 0
    text = (out / page.name).read_text()
    assert "17 of 140 cells, 8 minutes of one core" in text and "The study is not complete" in text
    assert "| CNN to GPT | `text-gpt` | 2 | 1.026 [1.026, 1.026] |" in text
    assert "| CNN to GPT | `h-level-8` | `static-half` | 2 | 64 |" in text and "SGD to Adam | `cifar" not in text
    assert (out / "transfer-rehearsed.png").read_bytes().startswith(b"\x89PNG")
    shown = json.loads(file.read_text())
    assert (shown["cells"], shown["of"]) == (17, 140)
    assert shown["answers"][0]["question"] == "away / home" and shown["answers"][0]["pairs"] == 2
