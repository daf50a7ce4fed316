"""The study of the paper's readings: what it runs, the policy that it trains, its answers, and its page."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from benchmarks.studies.agent import paper_mode, paper_mode_cells
from benchmarks.studies.agent.cells import BEST_STATIC
from benchmarks.studies.agent.paper_mode_answers import PARTS, REFERENCES, Readings, accuracy_at
from benchmarks.studies.agent.paper_mode_cells import (
    CONTENDERS,
    GROUPS,
    PER_ITERATION,
    PER_SAMPLE,
    SEEDS,
    TRAINING,
    Group,
    cells,
    train_reading,
)
from benchmarks.studies.agent.paper_mode_page import KINDS, draw_times, figures
from benchmarks.studies.rehearsed_cells import Name, Table, row_of
from dynamix_ps.policy.ppo.policy_file import load_policy, save_policy
from dynamix_ps.rehearsal.outcome import Evaluated, RehearsalOutcome
from dynamix_ps.sim.scenario.load import dump_scenario

TINY = dataclasses.replace(TRAINING, total_windows=64, environments=4, n_workers=(2,), rollout_windows=8)
SAMPLES_PER_S = {
    "static-32": 100.0, "static-64": 200.0, "static-128": 400.0, PER_ITERATION: 100.0, PER_SAMPLE: 800.0,
}  # fmt: skip
FIRST, SECOND = GROUPS[:2]


@pytest.fixture
def policy_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paper_mode_cells, "TRAINING", TINY)
    file = tmp_path / "results" / "paper-mode" / "per-sample.npz"
    train_reading(file)
    return file


def outcome(samples_per_s: float, best: float = 0.8, **changes: Any) -> RehearsalOutcome:
    """Accuracy rises by a point with every hundred samples, from 0.1 to the best; 10,000 samples in all."""
    curve = tuple(
        Evaluated(samples / samples_per_s, samples, {"accuracy": min(0.1 + samples / 10_000, best)})
        for samples in range(100, 10_001, 100)
    )
    given: dict[str, Any] = {
        "train_s": curve[-1].time_s,
        "iterations": 25,
        "plans": 0,
        "passes": 1,
        "diverged": False,
        "curve": curve,
    }
    return RehearsalOutcome(**(given | changes), higher_is_better={"accuracy": True})


def readings(changed: Mapping[str, RehearsalOutcome] = MappingProxyType({}), group: Group = FIRST) -> Readings:
    """Two seeds of a group. `changed`: the runs of the first seed that are other ones, by contender."""
    outcomes = {
        Name(group.workload, group.cluster, name, seed): outcome(speed)
        for name, speed in SAMPLES_PER_S.items()
        for seed in range(2)
    }
    outcomes |= {Name(group.workload, group.cluster, name, 0): one for name, one in changed.items()}
    return Readings(outcomes)


def test_the_same_seed_gives_the_same_weights_of_the_second_reading(policy_file: Path, tmp_path: Path) -> None:
    train_reading(tmp_path / "again.npz")
    first, second = (load_policy(file, None) for file in (policy_file, tmp_path / "again.npz"))
    weights = [one.networks["worker"].params.flat.tobytes() for one in (first, second)]
    assert weights[0] == weights[1]
    assert first.networks["worker"].adam is None
    assert first.provenance["settings"]["reward"]["time"] == "per_sample"


@pytest.mark.slow
def test_every_contender_meets_every_group_with_seeds_of_its_own(policy_file: Path) -> None:
    every, quick = cells(False, policy_file), cells(True, policy_file)
    names = [cell.name for cell in every]
    assert len(names) == len(set(names)) == len({cell.key for cell in every}) == len(GROUPS) * SEEDS * len(CONTENDERS)
    seeds = {group: {name.seed for name in names if name[:2] == (group.workload, group.cluster)} for group in GROUPS}
    assert sum(map(len, seeds.values())) == len(set.union(*seeds.values())) == len(GROUPS) * SEEDS
    assert {cell.name: cell.key for cell in quick}.items() <= {cell.name: cell.key for cell in every}.items()
    assert {cell.name.workload for cell in quick} == {"cifar-vgg11, rate x1"} and len(quick) == 2 * len(CONTENDERS)
    first = names[: len(GROUPS) * len(CONTENDERS)]  # one seed of everything, before the next one begins
    assert {name[:2] for name in first} == {name[:2] for name in names}


def test_contenders_are_trained_alike(policy_file: Path) -> None:
    configs = {
        cell.name.contender: cell.config
        for cell in cells(False, policy_file)
        if cell.name.workload == "cifar-resnet, rate x0.25"
    }
    for name, config in configs.items():
        assert (config.batch.min, config.batch.max) == (32, 1024)
        assert config.initial_sizes() == (64,) * 4
        assert config.command[config.command.index("--lr-factor") + 1] == "0.25"
        assert config.policy.safety.enabled == (not name.startswith("paper"))
    assert configs["static-128"].policy.sizes == (128,) * 4
    ppo = [configs[name].policy.ppo for name in (PER_ITERATION, PER_SAMPLE)]
    assert [(one.space, one.time, one.file) for one in ppo] == [
        ("paper", "per_iteration", None),
        ("paper", "per_sample", str(policy_file)),
    ]


def test_the_gradient_is_that_of_the_scenario_in_every_rehearsal(policy_file: Path) -> None:
    """The thin models have one that takes no time, and then hardly anything is gained by larger batches."""
    scenarios = {cell.name.scenario: cell.scenario for cell in cells(True, policy_file)}
    for scenario in scenarios.values():
        assert f"model_bytes: {scenario.model_bytes}" in dump_scenario(scenario)


@pytest.mark.slow
def test_another_policy_of_the_second_reading_runs_its_cells_again(policy_file: Path) -> None:
    before = {cell.name: cell.key for cell in cells(False, policy_file)}
    other = policy_file.with_name("other.npz")
    save_policy(other, dataclasses.replace(load_policy(policy_file, None), provenance={"origin": "elsewhere"}))
    changed = {cell.name.contender for cell in cells(False, other) if before[cell.name] != cell.key}
    assert changed == {PER_SAMPLE}


def test_targets_are_accuracies_that_the_largest_size_passes() -> None:
    found = readings({"static-64": outcome(200.0, best=0.3)}).targets
    assert list(found) == [FIRST.workload]
    assert [target.value for target in found[FIRST.workload]] == pytest.approx([0.1 + part for part in PARTS], abs=0.11)
    assert found[FIRST.workload][0].value == pytest.approx(0.5)
    assert not Readings({}).targets


def test_times_are_relative_to_each_size_and_to_the_best() -> None:
    found = readings()
    assert found.best_static(FIRST) == "static-128" and found.best_static(SECOND) is None
    times = {one: found.answer(PER_SAMPLE, one, GROUPS).time for one in REFERENCES}
    values = {name: one.value for name, one in times.items() if one is not None}
    assert values == pytest.approx({"static-32": 1 / 8, "static-64": 1 / 4, "static-128": 1 / 2, BEST_STATIC: 1 / 2})
    answer = found.answer(PER_ITERATION, "static-32", GROUPS)
    assert answer.time is not None and answer.time.value == 1 and (answer.pairs, answer.misses) == (2, 0)


def test_one_pair_of_a_group_has_no_interval() -> None:
    outcomes = {Name(FIRST.workload, FIRST.cluster, name, 0): outcome(speed) for name, speed in SAMPLES_PER_S.items()}
    answer = Readings(outcomes).answer(PER_SAMPLE, "static-32", GROUPS)
    for estimate, value in ((answer.time, 1 / 8), (answer.after_equal_samples, 0.0)):
        assert estimate is not None and estimate.low == estimate.high == pytest.approx(value)
    assert answer.pairs == 1 and answer.shown == math.inf


def test_points_at_equal_time_and_after_equal_samples() -> None:
    found = readings({"static-32": outcome(100.0, best=0.75)})
    answer = found.answer(PER_SAMPLE, "static-32", GROUPS)
    assert answer.at_equal_time is not None and answer.after_equal_samples is not None
    # the reading ends after 12.5 s, and 1,250 samples of the smallest size
    assert answer.at_equal_time.value == pytest.approx(80 - 22.5)
    assert answer.after_equal_samples.value == pytest.approx((5 + 0) / 2)
    assert answer.pairs == 2


def test_who_misses_a_target_is_counted_and_never_looks_faster() -> None:
    found = readings({PER_SAMPLE: outcome(800.0, best=0.3)})
    answer = found.answer(PER_SAMPLE, "static-32", GROUPS)
    assert answer.misses == 1
    assert answer.time is not None and answer.time.value == pytest.approx((1 / 8 * 1) ** 0.5)
    summary = found.summary(PER_SAMPLE, FIRST)
    assert summary is not None and summary.misses == len(PARTS) and summary.size == 100.0


def test_a_training_that_broke_counts_as_guessing_from_then_on() -> None:
    broke = outcome(100.0, train_s=50.0, diverged=True)
    assert accuracy_at(broke, 40.0) == pytest.approx(0.5)
    assert accuracy_at(broke, 60.0) == accuracy_at(broke) == accuracy_at(outcome(100.0, curve=())) == 0.1


def test_every_kind_is_of_groups_that_are_alike() -> None:
    assert KINDS["all"] == GROUPS
    assert [len(groups) for groups in KINDS.values()] == [8, 4, 4, 4, 4, 4, 4]
    one_group = readings(group=SECOND)
    assert one_group.answer(PER_SAMPLE, "static-32", KINDS["`h-level-8`"]).pairs == 2
    assert one_group.answer(PER_SAMPLE, "static-32", KINDS["`homogeneous`"]).time is None


def test_figures_and_picture_have_every_kind_and_reading() -> None:
    from matplotlib.figure import Figure

    found = readings()
    shown = figures(found)
    assert len(shown) == len(KINDS) * 2 * len(REFERENCES)
    assert json.loads(json.dumps(shown))[0]["time"]["value"] == pytest.approx(1.0)
    figure = Figure()
    draw_times(figure, found)
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels[:2] == ["all: per iteration", "all: per sample"] and len(labels) == 2 * len(KINDS)


@pytest.mark.slow
def test_the_page_grows_with_the_rows(policy_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = policy_file.parents[1]
    command = ["--quick", "--out", str(out), "--limit-s", "-1", "--json", str(out / "figures.json")]
    assert paper_mode.main(command) == 0
    assert "there is nothing to tell yet" in capsys.readouterr().out
    table = Table(out / "paper-mode" / "cells.csv")
    for cell in cells(False, policy_file):
        if cell.name[:2] == (FIRST.workload, FIRST.cluster) and cell.name.seed < 2:
            table.add(row_of(cell, outcome(SAMPLES_PER_S[cell.name.contender]), 60.0))
    assert paper_mode.main(command) == 0
    assert "5 of 10 runs are left: about 2 minutes" in capsys.readouterr().out
    text = (out / "paper-mode.md").read_text()
    assert "`python -m benchmarks.studies.agent.paper_mode`: 10 of 120 cells, 10 minutes of one core" in text
    assert "| the paper: abstract, up to 32 nodes | not known | down to 0.54 | up to +6.3 | up to +6.3 |" in text
    assert "| here: `paper, per sample` | static-64 | 0.25 | " in text
    assert "| `cifar-vgg11` | x1 | `homogeneous` | `static-128`, best static | 2 | 100 | " in text
    assert (out / "paper-mode.png").read_bytes().startswith(b"\x89PNG")
    shown = json.loads((out / "figures.json").read_text())
    assert (shown["cells"], shown["of"]) == (10, 120)
