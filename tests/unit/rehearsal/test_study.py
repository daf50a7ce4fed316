"""The runs of a study: started, repeated only where missing, refused with the end of their log."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from dynamix_ps.config import variables
from dynamix_ps.config.load import load_config
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import DIVERGED, JobFailed, UsageError
from dynamix_ps.rehearsal.study import Study, StudyRun
from dynamix_ps.sim.scenario.load import Scenario, load_scenario

SCRIPT = """
import json, os, pathlib, sys
names = ("DYNAMIX_CONFIG", "DYNAMIX_REHEARSAL", "DYNAMIX_ARBITRATOR", "WORLD_SIZE")
told = {name: os.environ.get(name) for name in names}
file = pathlib.Path(os.environ["DYNAMIX_RUN_DIR"]) / "workers" / "worker-0.jsonl"
lines = [{"kind": "started", "time_s": 5.0}]
evaluation = {"kind": "evaluation", "time_s": 8.0, "trained_s": 3.0, "trained_samples": 640, "epoch": 1}
few = 2 if sys.argv[1] == "seldom" else 3
lines += [{**evaluation, "values": {"loss": 0.5}, "higher_is_better": {"loss": False}}] * few
if sys.argv[1] == "diverges":
    lines.append({"kind": "failed", "time_s": 9.0, "iteration": 7, "error": "the loss IS_NOT_FINITE 7"})
elif sys.argv[1] != "2":
    lines.append({"kind": "finished", "time_s": 9.0, "iterations": 10, "samples": 640, "train_s": 4.0})
file.write_text("".join(json.dumps(line) + "\\n" for line in lines))
print(json.dumps(told))
sys.exit("no data" if sys.argv[1] == "2" else 0)
""".replace("IS_NOT_FINITE", DIVERGED)


def study(within: Path, *, argument: str = "{seed}", **changes: Any) -> Study:
    script = within / "train.py"
    script.write_text(SCRIPT)
    config = Config.model_validate({"cluster": {"workers": ({}, {})}, "policy": {"name": "pid"}})
    scenario = Scenario.model_validate({"name": "any", "workers": ({"count": 2},)})
    command = (sys.executable, str(script), argument)
    given = {"policies": ("pid", "static"), "seeds": (0, 1), "command": command, "scenarios": (scenario,)}
    return Study(**({"folder": within / "study", "config": config} | given | changes))


def log_of(one: Study, run: StudyRun) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(one.folder_of(run).log_file("worker-0").read_text().splitlines()[0])
    return told


def test_every_run_gets_its_policy_its_seed_and_its_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(variables.ARBITRATOR, "of another run:1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    one, seen = study(tmp_path), []
    one.run_missing(2, seen.append)
    assert seen[-1] == 4.0
    found = one.outcomes()
    assert list(found) == [StudyRun("any", policy, seed) for seed in (0, 1) for policy in ("pid", "static")]
    assert found[StudyRun("any", "pid", 0)].curve[0].values == {"loss": 0.5}
    told = log_of(one, StudyRun("any", "static", 1))
    config = load_config(told["DYNAMIX_CONFIG"])
    assert (config.policy.name, config.seed, config.command[2]) == ("static", 1, "{seed}")
    assert load_scenario(told["DYNAMIX_REHEARSAL"]).n_workers == 2
    assert told["DYNAMIX_ARBITRATOR"] is None and told["WORLD_SIZE"] is None


def test_runs_that_are_over_are_not_repeated_and_others_may_be_added(tmp_path: Path):
    study(tmp_path).run_missing(2, lambda done: None)
    more = study(tmp_path, policies=("goodput", "pid"))
    kept = more.folder_of(StudyRun("any", "pid", 0)).log_file("worker-0")
    before = os.stat(kept).st_mtime_ns
    more.run_missing(1, lambda done: None)
    assert os.stat(kept).st_mtime_ns == before
    assert len(more.outcomes()) == 4


def test_a_run_that_diverges_is_over_and_one_that_fails_ends_the_study(tmp_path: Path):
    dead = study(tmp_path, argument="diverges")
    dead.run_missing(2, lambda done: None)
    outcome = dead.outcomes()[StudyRun("any", "pid", 0)]
    assert outcome.diverged and (outcome.train_s, outcome.iterations) == (4.0, 7)
    failing = study(tmp_path, seeds=(2,), folder=tmp_path / "other")
    with pytest.raises(JobFailed, match=r"(?s)policy pid, scenario any, seed 2 failed, exit code 1; .*no data"):
        failing.run_missing(1, lambda done: None)


def test_a_script_that_evaluates_seldom_ends_the_study_with_its_first_run(tmp_path: Path):
    seldom = study(tmp_path, argument="seldom")
    expected = "policy pid, scenario any, seed 0 evaluated the model 2 times, expected 3 or more in every run"
    with pytest.raises(UsageError, match=expected):
        seldom.run_missing(1, lambda done: None)
    assert list(seldom.outcomes()) == [StudyRun("any", "pid", 0)]
    with pytest.raises(UsageError, match=expected):  # no further run in this folder
        seldom.run_missing(1, lambda done: None)
    assert len(seldom.outcomes()) == 1


def test_a_folder_of_another_study_is_refused(tmp_path: Path):
    study(tmp_path).check_settings()
    study(tmp_path, policies=("goodput",), seeds=(7,)).check_settings()
    with pytest.raises(UsageError, match="is of another study"):
        study(tmp_path, argument="0").check_settings()
