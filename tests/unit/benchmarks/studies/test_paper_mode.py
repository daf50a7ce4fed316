"""The study of the paper's readings: what it runs, the policy that it trains, and the page from the rows it has."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from benchmarks.report.paper_mode import CONTENDERS, PER_ITERATION, PER_SAMPLE
from benchmarks.studies import paper_mode
from benchmarks.studies.rehearsed_cells import Table, row_of
from dynamix_ps.policy.ppo.policy_file import load_policy, save_policy
from dynamix_ps.rehearsal.outcome import Evaluated, Outcome

TINY = dataclasses.replace(paper_mode.READING, total_windows=64, environments=4, n_workers=(2,), rollout_windows=8)


@pytest.fixture
def policy_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paper_mode, "READING", TINY)
    file = tmp_path / "results" / "paper-mode" / "per-sample.npz"
    paper_mode.train_reading(file)
    return file


def test_the_same_seed_gives_the_same_weights_of_the_second_reading(policy_file: Path, tmp_path: Path) -> None:
    paper_mode.train_reading(tmp_path / "again.npz")
    first, second = (load_policy(file, None) for file in (policy_file, tmp_path / "again.npz"))
    weights = [one.networks["worker"].params.flat.tobytes() for one in (first, second)]
    assert weights[0] == weights[1]
    assert first.networks["worker"].adam is None
    assert first.provenance["settings"]["reward"]["time"] == "per_sample"


def test_every_contender_meets_every_group_with_every_seed(policy_file: Path) -> None:
    everything = list(paper_mode.planned(policy_file))
    names = [one.cell.name for one in everything]
    assert len(names) == len(set(names)) == 2 * 3 * 2 * 4 * len(CONTENDERS)
    assert len({one.cell.key for one in everything}) == len(names)
    quick = [name for name in names if paper_mode._quick(name)]
    assert quick == names[: len(quick)] and len(quick) == 3 * 2 * len(CONTENDERS)


def test_contenders_are_trained_alike(policy_file: Path) -> None:
    first = list(paper_mode.planned(policy_file))[: 2 * len(CONTENDERS)]
    configs = {(one.contender, one.rate): one.cell.config for one in first}
    for (name, rate), config in configs.items():
        assert (config.batch.min, config.batch.max) == (32, 1024)
        assert config.initial_sizes() == (64,) * 4
        assert dict(zip(config.command[3::2], config.command[4::2], strict=True))["--lr-factor"] == str(rate)
        assert config.policy.safety.enabled == (not name.startswith("paper"))
    assert configs["static-128", 0.25].policy.sizes == (128,) * 4
    readings = [configs[name, 1.0].policy.ppo for name in (PER_ITERATION, PER_SAMPLE)]
    assert [(one.space, one.time, one.file) for one in readings] == [
        ("paper", "per_iteration", None),
        ("paper", "per_sample", str(policy_file)),
    ]


def test_another_policy_of_the_second_reading_runs_its_cells_again(policy_file: Path) -> None:
    before = {one.cell.name: one.cell.key for one in paper_mode.planned(policy_file)}
    other = policy_file.with_name("other.npz")
    save_policy(other, dataclasses.replace(load_policy(policy_file, None), provenance={"origin": "elsewhere"}))
    changed = {one.contender for one in paper_mode.planned(other) if before[one.cell.name] != one.cell.key}
    assert changed == {PER_SAMPLE}


def test_the_page_grows_with_the_rows(policy_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = policy_file.parents[1]
    command = ["--quick", "--out", str(out), "--limit-s", "-1", "--json", str(out / "figures.json")]
    table = Table(out / "paper-mode" / "cells.csv")
    everything = list(paper_mode.planned(policy_file))
    curve = tuple(Evaluated(float(step), 100 * step, {"accuracy": 0.03 * step}) for step in range(1, 21))
    outcome = Outcome(20.0, 50, 0, 1, False, curve, {"accuracy": True})
    for one in everything[: len(CONTENDERS) - 1]:
        table.add(row_of(one.cell, outcome, 60.0))
    assert paper_mode.main(command) == 0
    said = capsys.readouterr().out
    assert "36 of 42 runs are left: about 18 minutes" in said and "no group has a complete seed" in said
    assert not (out / "paper-mode.md").exists()
    table.add(row_of(everything[len(CONTENDERS) - 1].cell, outcome, 60.0))
    assert paper_mode.main(command) == 0
    text = (out / "paper-mode.md").read_text()
    assert "`python -m benchmarks.studies.paper_mode`: 7 of 336 cells, 420 s of one core" in text
    assert "| `cifar-vgg11` | homogeneous | x1 | 1 | `paper, per sample` | 1.00 |" in text
    assert (out / "paper-mode.png").read_bytes().startswith(b"\x89PNG")
    figures = json.loads((out / "figures.json").read_text())
    assert (figures["cells"], figures["of"], len(figures["groups"])) == (7, 336, 1)
