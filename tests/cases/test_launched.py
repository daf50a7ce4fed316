"""The same under `dynamix launch`, on both data planes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dynamix_ps.errors import JobFailed, TrainingError
from tests.cases.harness import case_of, flat, in_double
from tests.cases.plain import plain_attach, put_together
from tests.cases.scripts.launched import CASES
from tests.launching import cluster_file, dynamix

SCRIPT = ("-m", "tests.cases.scripts.launched")
QUIET = "batch: {min: 1}\nmetrics: {network: off, tensorboard: false, prometheus_port: null}\n"


CHILDREN = ("-m", "tests.cases.scripts.children")


def launched(folder: Path, plane: str, *arguments: str, script: tuple[str, ...] = SCRIPT) -> tuple[int, str]:
    """Exit code and output of the launcher."""
    file = cluster_file(folder, QUIET, workers="[{batch: 24}, {batch: 8}]", comm=plane)
    process = dynamix("launch", "-c", str(file), "--", "python", *script, *arguments, cwd=folder)
    output, _ = process.communicate(timeout=100)
    return process.returncode, output


@pytest.mark.timeout(120)
@pytest.mark.parametrize("plane", ["gloo", "byteps"])
def test_a_script_with_several_trainings_is_one_process(plane: str, tmp_path: Path) -> None:
    code, output = launched(tmp_path, plane)
    assert code == 0, output
    check_results(tmp_path)


def check_results(folder: Path) -> None:
    """The two workers of SCRIPT have left the same results there, and those of one process."""
    found: list[dict[str, Any]] = [json.loads((folder / f"result-{rank}.json").read_text()) for rank in (0, 1)]
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


@pytest.mark.timeout(120)
@pytest.mark.parametrize("plane", ["gloo", "byteps"])
def test_a_process_that_a_worker_starts_is_refused_or_trains_alone(plane: str, tmp_path: Path) -> None:
    code, output = launched(tmp_path, plane, script=CHILDREN)
    assert code == 0, output
    first, second = (json.loads((tmp_path / f"result-{rank}.json").read_text()) for rank in (0, 1))
    assert first["weights"] == second["weights"]
    found, refused = second["found"], rf"process {second['pid']} is worker 1 already, and a worker is one process"
    assert found["alone"] == "0 trained 3"
    assert re.match(f"2 error: {refused}", found["subprocess"])
    for way in ("spawn", "fork", "os.fork"):
        assert re.match(refused, found[way]), found
    assert found["evaluates"].startswith("worker 1 has forked this process")


@pytest.mark.timeout(120)
def test_a_command_that_starts_a_worker_twice_is_refused_at_once(tmp_path: Path) -> None:
    code, output = launched(tmp_path, "gloo", "wrapper", script=CHILDREN)
    assert code == JobFailed.exit_code, output
    assert len(re.findall(r"2 error: process \d+ is worker [01] already, and a worker is one process", output)) >= 2
