"""The same under `dynamix launch`, on both data planes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dynamix_ps.errors import TrainingError
from tests.cases.harness import case_of, flat, in_double
from tests.cases.plain import plain_attach, put_together
from tests.cases.scripts.launched import CASES
from tests.launching import cluster_file, dynamix

SCRIPT = ("-m", "tests.cases.scripts.launched")
QUIET = "batch: {min: 1}\nmetrics: {network: off, tensorboard: false, prometheus_port: null}\n"


def launched(folder: Path, plane: str, *arguments: str) -> tuple[int, str]:
    """Exit code and output of the launcher."""
    file = cluster_file(folder, QUIET, workers="[{batch: 24}, {batch: 8}]", comm=plane)
    process = dynamix("launch", "-c", str(file), "--", "python", *SCRIPT, *arguments, cwd=folder)
    output, _ = process.communicate(timeout=100)
    return process.returncode, output


@pytest.mark.timeout(120)
@pytest.mark.parametrize("plane", ["gloo", "byteps"])
def test_a_script_with_several_trainings_is_one_process(plane: str, tmp_path: Path) -> None:
    code, output = launched(tmp_path, plane)
    assert code == 0, output
    found: list[dict[str, Any]] = [json.loads((tmp_path / f"result-{rank}.json").read_text()) for rank in (0, 1)]
    for name in CASES:
        first, second = (results[name] for results in found)
        assert first["values"] == second["values"]
        recorded = put_together([first["recorded"], second["recorded"]])
        alone = in_double(case_of(name), plain_attach(recorded))
        assert list(flat(first["values"])) == pytest.approx(list(flat(alone)), rel=1e-6, abs=1e-6)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["evaluate_on_rank_0_only", "gather_on_one_worker", "first_gather_on_one_worker"])
@pytest.mark.parametrize("plane", ["gloo", "byteps"])
def test_a_call_on_one_worker_alone_ends_the_job_with_the_cause(plane: str, name: str, tmp_path: Path) -> None:
    code, output = launched(tmp_path, plane, f"refused.{name}")
    assert code == TrainingError.exit_code
    told = re.findall(r"(worker-\d).*? error: the workers are at different places of the script: (.*)", output)
    assert {worker for worker, _ in told} == {"worker-0", "worker-1"}, output
    assert len({text for _, text in told}) == 1
