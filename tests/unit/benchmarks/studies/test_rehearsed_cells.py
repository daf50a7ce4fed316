"""Rehearsed runs as rows of a table: what a row keeps, which one counts, and that a study goes on where it was."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.studies.rehearsed_cells import Cell, Name, Table, Workplace, cell_of, outcome_of, row_of, run_missing
from benchmarks.suite.contenders import contender
from benchmarks.suite.workloads import load_workload
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import JobFailed
from dynamix_ps.rehearsal.outcome import Evaluated, EvaluationTarget, RehearsalOutcome
from dynamix_ps.sim.scenario.load import Scenario, load_scenario

SCRIPT = """
import json, os, pathlib, sys
folder = pathlib.Path(os.environ["DYNAMIX_RUN_DIR"])
told = {"kind": "evaluation", "epoch": 1, "values": {"loss": 0.5}, "higher_is_better": {"loss": False}}
lines = [
    {"kind": "started", "time_s": 5.0},
    *({**told, "time_s": 5.0 + n, "trained_s": float(n), "trained_samples": 200 * n} for n in (1, 2, 3)),
    {"kind": "finished", "time_s": 9.0, "iterations": 10, "samples": 640, "train_s": 4.0},
]
(folder / "workers" / "worker-0.jsonl").write_text("".join(json.dumps(line) + "\\n" for line in lines))
sys.exit(int(sys.argv[1]) and "no data")
"""


def cell(within: Path, seed: int = 0, fails: bool = False, **settings: Any) -> Cell:
    script = within / "train.py"
    script.write_text(SCRIPT if not fails else "raise SystemExit('no data')")
    given = {"cluster": {"workers": ({}, {})}, "policy": {"name": "pid"}, "seed": seed}
    config = Config.model_validate(given | {"command": (sys.executable, str(script), "0")} | settings)
    scenario = Scenario.model_validate({"name": "any", "workers": ({"count": 2},)})
    return Cell(Name("text-gpt", "any", "pid", seed), config, scenario)


def test_a_row_gives_the_run_back(tmp_path: Path) -> None:
    points = [
        Evaluated(1.25, 100, {"loss": 2.0, "accuracy": 0.25}),
        Evaluated(1.25, 100, {"averaged_loss": 2.5, "averaged_accuracy": 0.125}),
        Evaluated(2.5, 200, {"loss": 1.0, "accuracy": 0.5}),
        Evaluated(2.5, 200, {"averaged_loss": 1.5, "averaged_accuracy": 0.75}),
    ]
    run = RehearsalOutcome(3.0, 12, 4, 1, False, tuple(points), {})
    found = outcome_of(row_of(cell(tmp_path), run, took_s=1.0))
    assert (found.train_s, found.iterations, found.plans, found.passes, found.diverged) == (3.0, 12, 4, 1, False)
    assert len(found.curve) == 2
    assert found.curve[1] == (2.5, 200, {"loss": 1.0, "accuracy": 0.5, "averaged_loss": 1.5, "averaged_accuracy": 0.75})
    for name in ("loss", "averaged_accuracy"):
        target = EvaluationTarget(name, run.curve[-1].values.get(name, 1.0), name != "loss")
        assert found.reached(target) == run.reached(target)


def test_a_run_that_breaks_at_once_has_a_row(tmp_path: Path) -> None:
    found = outcome_of(row_of(cell(tmp_path), RehearsalOutcome(0.1, 3, 0, 0, True, (), {}), took_s=1.0))
    assert found.diverged and found.curve == ()
    broken = RehearsalOutcome(0.1, 3, 0, 0, True, (Evaluated(0.1, 8, {"loss": math.nan}),), {})
    assert math.isnan(outcome_of(row_of(cell(tmp_path), broken, took_s=1.0)).curve[0].values["loss"])


def test_what_has_ended_is_not_repeated_and_changed_settings_are(tmp_path: Path) -> None:
    file = tmp_path / "out" / "cells.csv"
    first, second = cell(tmp_path), cell(tmp_path, seed=1)
    assert run_missing([first, second], Table(file), jobs=2, limit_s=-1) == 2
    assert not file.exists()
    assert run_missing([first], Table(file), jobs=1) == 0
    kept = Table(file).rows([first])[first.name]
    assert outcome_of(kept).curve[0].values == {"loss": 0.5}
    progress: list[int] = []
    assert run_missing([first, second], Table(file), jobs=2, on_progress=progress.append) == 0
    assert progress[0] >= 1 and progress[-1] == 2
    assert Table(file).rows([first])[first.name] == kept
    changed = cell(tmp_path, window=7)
    assert Table(file).rows([changed, second]).keys() == {second.name}
    run_missing([changed], Table(file), jobs=1)
    assert Table(file).rows([first, changed, second]).keys() == {changed.name, second.name}
    assert file.read_text().count("\n") == 3


def test_a_run_that_fails_ends_the_study_with_the_end_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match=r"(?s)policy pid, scenario any, seed 0 failed, exit code 1; .*no data"):
        run_missing([cell(tmp_path, fails=True)], Table(tmp_path / "cells.csv"), jobs=1)


def test_the_key_is_of_what_decides_the_run_and_not_of_places(tmp_path: Path) -> None:
    weights = [tmp_path / name for name in ("a.npz", "b.npz", "c.npz")]
    for file, content in zip(weights, (b"1", b"1", b"2"), strict=True):
        file.write_bytes(content)
    policies = [{"name": "ppo", "ppo": {"file": str(file)}} for file in weights]
    keys = [cell(tmp_path, policy=policy).key for policy in policies]
    assert keys[0] == keys[1] != keys[2]
    assert cell(tmp_path, run_dir="elsewhere").key == cell(tmp_path).key != cell(tmp_path, lr="guard").key


def test_a_contender_of_the_suite_becomes_a_cell() -> None:
    workload, scenario = load_workload("fashion-cnn-short"), load_scenario("h-level-8")
    place = Workplace(workload, scenario, (24,) * 8)
    plain = cell_of(Name("fashion-cnn-short", "h-level-8", "static-48-x4", 3), place, contender("static-48-x4"))
    assert plain.config.policy.sizes == (48,) * 8 and plain.config.initial_sizes() == (24,) * 8
    assert plain.config.command[-4:] == ("--lr-factor", "4.0", "--seed", "{seed}")
    assert (plain.config.seed, plain.config.lr, plain.config.lr_rule) == (3, "follow", workload.lr_rule)
