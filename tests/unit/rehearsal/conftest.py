"""A rehearsed cluster around a script: what `dynamix rehearse` sets in the environment of one run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dynamix_ps.config import variables
from dynamix_ps.config.schema import Config
from dynamix_ps.run_record.run_folder import RunFolder
from dynamix_ps.sim.scenario.load import Scenario, dump_scenario
from tests.unit.open_trainings import end_trainings
from worker_hooks.process import place

Rehearse = Callable[..., Path]


@pytest.fixture(autouse=True)
def trainings_end() -> Iterator[None]:
    yield
    end_trainings()
    os.environ.pop(variables.ATTACHED, None)  # else the processes of later tests are refused
    place._holder = 0


@pytest.fixture
def rehearse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rehearse:
    """From now on `attach()` joins a rehearsed cluster. Returns the run folder."""

    def prepare(name: str = "run", **settings: Any) -> Path:
        scenario = settings.pop("scenario", Scenario.model_validate({"name": "test", "workers": ({"count": 3},)}))
        given = {"cluster": {"workers": ({"batch": 8}, {"batch": 8}, {"batch": 8})}, "batch": {"min": 0}, "window": 4}
        config = Config.model_validate(given | settings)
        folder = RunFolder(tmp_path / name)
        for part in (folder.workers_dir, folder.roles_dir, folder.arbitrator_dir, folder.checkpoints_dir):
            part.mkdir(parents=True)
        folder.write_config(config)
        file = folder.path / "scenario.yaml"
        file.write_text(dump_scenario(scenario))
        for variable, value in (
            (variables.CONFIG, folder.config_file),
            (variables.RUN_DIR, folder.path),
            (variables.RUN_ID, name),
            (variables.REHEARSAL, file),
        ):
            monkeypatch.setenv(variable, str(value))
        return folder.path

    return prepare


def lines_of(folder: Path, rank: int = 0, kind: str | None = None) -> list[dict[str, Any]]:
    text = (folder / "workers" / f"worker-{rank}.jsonl").read_text()
    return [line for line in map(json.loads, text.splitlines()) if kind in (None, line["kind"])]
