"""Real cells: a grid whose runner is killed, and a training run that diverges."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.suite.grid_folder import GridFolder
from benchmarks.suite.machine_speed import machine_name
from benchmarks.suite.results import CellName, read_result
from benchmarks.testbed.names import left_over
from tests.launching import dynamix, ends, wait_for

pytestmark = pytest.mark.timeout(300)

FIRST, SECOND = (CellName("h-level-4", "digits-mlp", contender, 1) for contender in ("static-16", "proportional"))
GRID = """\
name: tiny
seeds: [1]
scenarios: [h-level-4]
workloads: [digits-mlp]
contenders: [static, proportional]
static_sizes: [16]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """With a grid in it. Its cells are ended if the test fails."""
    (tmp_path / "tiny.yaml").write_text(GRID)
    yield tmp_path
    for process in _cells_of(tmp_path):
        process.terminate()


def _cells_of(folder: Path) -> list[psutil.Process]:
    """Processes that run a cell of this folder."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(folder / "out" / "cells") in (process.info["cmdline"] or [])
    ]


def test_a_grid_goes_on_after_its_runner_was_killed(folder: Path) -> None:
    results, beds = GridFolder(folder / "out"), left_over()
    command = ("bench", "run", "tiny.yaml", "--out", str(folder / "out"))
    runner = dynamix(*command, cwd=folder)
    wait_for(lambda: results.log_file(SECOND).exists() and _cells_of(folder), "the second cell", limit_s=120)
    assert results.result(FIRST) is not None
    written_ns = results.result_file(FIRST).stat().st_mtime_ns
    os.kill(runner.pid, signal.SIGKILL)
    runner.communicate()

    again = dynamix(*command, cwd=folder)
    output = ends(again, 0, limit_s=250)
    assert "2 cells, 1 done, 1 to run" in output
    assert results.result_file(FIRST).stat().st_mtime_ns == written_ns
    second = results.result(SECOND)
    assert second is not None
    assert (second.ended, second.plans > 0, len(second.curve) > 0) == ("done", True, True)
    assert second.replayed == second.windows > 0
    assert second.machine == machine_name()
    assert second.machine_gflop_per_s is not None
    assert second.machine_gflop_per_s > 0
    assert (folder / "out" / "report.html").exists()
    assert _cells_of(folder) == []
    assert set(left_over()) <= set(beds)


def test_a_cell_over_ddp_trains_without_our_hook_under_the_same_quotas(tmp_path: Path) -> None:
    name = CellName("h-level-4", "digits-mlp", "ddp-by-hand", 1)
    beds = left_over()
    words = (name.scenario, name.workload, name.contender, str(name.seed), "--out", str(tmp_path))
    done = subprocess.run(
        (sys.executable, "-m", "benchmarks.suite.cell", *words),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = read_result(tmp_path / f"{name}.json")
    first, last = result.curve[0], result.curve[-1]
    assert (result.ended, last.epoch, result.samples) == ("done", result.epochs, last.samples)
    assert last.accuracy > max(first.accuracy, 0.9)
    assert [plan.sizes for plan in result.sizes] == [(8, 11, 29)]
    assert result.train_s is not None and result.train_s > last.time_s > 0
    assert set(left_over()) <= set(beds)


def test_a_training_that_diverges_is_a_result_and_no_crash(tmp_path: Path) -> None:
    name = CellName("homogeneous", "digits-mlp", f"static-16-x1{'0' * 33}", 1)
    words = (name.scenario, name.workload, name.contender, str(name.seed), "--out", str(tmp_path))
    command = (sys.executable, "-m", "benchmarks.suite.cell", *words)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    result = read_result(tmp_path / f"{name}.json")
    assert (result.ended, result.curve) == ("diverged", ())
    assert "is not finite in iteration 1" in result.reason
