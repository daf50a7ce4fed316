"""What worker 0 does before all others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launching import cluster_file, dynamix, ends, environment

QUIET = "batch: {min: 1}\nmetrics: {network: off, tensorboard: false, prometheus_port: null}\n"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("plane", ["gloo", "byteps"])
def test_the_others_see_what_worker_0_has_written(plane: str, tmp_path: Path) -> None:
    file = cluster_file(tmp_path, QUIET, workers="[{batch: 24}, {batch: 8}]", comm=plane)
    process = dynamix("launch", "-c", str(file), "--", "python", "-m", "tests.cases.scripts.prepared", cwd=tmp_path)
    ends(process, 0, limit_s=100)
    for rank in range(2):
        assert seen(tmp_path, rank) == ["written once", [rank, 2], [rank, 2]]


def test_a_script_without_a_launcher_just_calls_it(tmp_path: Path) -> None:
    call = [sys.executable, "-m", "tests.cases.scripts.prepared"]
    subprocess.run(call, env=environment(), cwd=tmp_path, check=True, timeout=60)
    assert seen(tmp_path, 0) == ["written once", [0, 1], [0, 1]]


def seen(folder: Path, rank: int) -> object:
    return json.loads((folder / f"seen-{rank}").read_text())
