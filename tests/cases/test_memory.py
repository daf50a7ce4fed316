"""A worker whose batch does not fit into its memory: the job ends with the weights of one process that has enough."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cases.scripts.memory import MEMORY_GROUP
from tests.cases.test_equal_to_one_process import check
from tests.forked import ForkServer, Worker

SIZES = (24, 32, 8)


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group that can limit memory."""
    for root, file in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = Path(root, f"dynamix-test-memory-{os.getpid()}")
        with contextlib.suppress(OSError):
            group.mkdir()
        if (group / file).exists():
            yield group
            group.rmdir()
            return
        with contextlib.suppress(OSError):
            group.rmdir()
    pytest.skip("this process may not make control groups that limit memory")


def run(server: ForkServer, case: str, folder: Path, **options: Any) -> list[Worker]:
    job = {"name": f"memory.{case}", "plans": []}
    settings = {"mode": "observe", "lr_rule": "none", "window": 3}
    return server.run("tests.cases.harness:work", job, folder, SIZES, **(settings | options))


def told(folder: Path, rank: int) -> list[str]:
    """What this worker says of its memory."""
    lines = map(json.loads, (folder / "run" / "workers" / f"worker-{rank}.jsonl").read_text().splitlines())
    return [line["detail"] for line in lines if line["kind"] == "degraded" and line["what"] == "memory"]


def test_a_model_that_fails_above_a_size_on_one_worker(server: ForkServer, tmp_path: Path) -> None:
    check("memory.fails_above_a_size", run(server, "fails_above_a_size", tmp_path, memory="auto"))
    (only,) = told(tmp_path, 1)
    assert only.startswith("32, 16, 12 samples at once did not fit (OutOfMemoryError: CUDA out of memory"), only
    assert "8 do" in only
    assert not told(tmp_path, 0) and not told(tmp_path, 2)


def test_a_size_that_the_cluster_file_says(server: ForkServer, tmp_path: Path) -> None:
    workers = tuple({"batch": size, "at_once": 10, "min": 0} for size in SIZES)
    settings = {"cluster": {"workers": workers}, "batch": {"min": 1}}
    check("memory.fails_above_a_size", run(server, "fails_above_a_size", tmp_path, **settings))


def test_a_control_group_that_limits_memory(server: ForkServer, tmp_path: Path, memory_group: Path) -> None:
    own: Any = ({}, {MEMORY_GROUP: str(memory_group)}, {})
    check("memory.in_a_control_group", run(server, "in_a_control_group", tmp_path, memory="auto", own=own))
    (only,) = told(tmp_path, 1)
    failed, _, rest = only.partition(" samples at once did not fit (")
    assert failed.startswith("32") and len(failed.split(", ")) <= 3, only
    assert "allocate memory" in rest
    assert not told(tmp_path, 0) and not told(tmp_path, 2)


def test_without_auto_the_job_ends_and_says_which_size_to_take(server: ForkServer, tmp_path: Path) -> None:
    workers = run(server, "fails_above_a_size", tmp_path)
    assert workers[1].code == 4
    assert "error: worker 1 is out of memory in iteration 0 with a batch of 32 samples; no batch fitted before" in (
        workers[1].output
    )
    assert "set at_once: 16 for this worker, or memory: auto, in the cluster file" in workers[1].output
    assert "Traceback" in workers[1].output
