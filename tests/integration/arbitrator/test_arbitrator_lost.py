"""Invariant 4: training continues without the arbitrator. A whole run in which the arbitrator is killed with -9."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.launching import assert_nothing_left, summary_in

CLUSTER = """
name: lost
window: 5
emulation: none
cluster:
  workers: [{batch: 24}, {batch: 24}]
batch: {min: 12, max: 64}  # fewer samples and this learning rate diverges, with or without an arbitrator
policy: {name: ppo, ppo: {file: fresh, learn: true}}
"""
COMMAND = ["python", "-m", "benchmarks.workloads.train", "--data", "digits", "--model", "mlp"]
COMMAND += ["--epochs", "80", "--eval-every", "500"]
DECISION = '"decision_ms"'  # in the journal's line of every decision, whether it changed the sizes or not
ITERATIONS_AT_LEAST = 80 * 1437 // 128  # with both workers at their largest size


def arbitrators(launcher: psutil.Process) -> list[psutil.Process]:
    found = []
    for child in launcher.children(recursive=True):
        try:
            if "dynamix_ps.arbitrator" in child.cmdline():
                found.append(child)
        except psutil.Error:
            continue
    return found


@pytest.mark.timeout(180)
def test_killing_the_arbitrator_costs_nothing_but_a_line_in_the_summary(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    command = [sys.executable, "-m", "dynamix_ps.cli.main", "launch", "-c", str(tmp_path / "cluster.yaml")]
    command += ["--run-dir", str(tmp_path / "runs"), "--", *COMMAND]
    with (tmp_path / "output").open("wb") as output:
        launch = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        launcher = psutil.Process(launch.pid)
        journal = wait_for_plan(tmp_path, launch)
        (killed,) = arbitrators(launcher)
        decisions_before = journal.read_text().count(DECISION)
        killed.kill()
        assert launch.wait(150) == 0, (tmp_path / "output").read_text()[-3000:]
    finally:
        if launch.poll() is None:
            launch.terminate()
            launch.wait(30)
    text = (tmp_path / "output").read_text()
    summary = summary_in(tmp_path)
    assert summary["exit_code"] == 0
    assert summary["iterations"] >= ITERATIONS_AT_LEAST
    assert summary["final_accuracy"] > 0.9
    assert '"arbitrator_restarted"' in (tmp_path / "runs" / "latest" / "events.jsonl").read_text()
    assert any("arbitrator" in entry for entry in summary["degraded"]), summary["degraded"]
    assert journal.read_text().count('"started"') >= 2, "it was restarted from its journal"
    assert journal.read_text().count(DECISION) > decisions_before, "and decided again"
    told = [line for line in text.splitlines() if line.startswith("event degraded: arbitrator")]
    assert 1 <= len(told) == len(set(told)) <= 2, "one warning per outage, two where the workers saw it differently"
    for rank in range(2):
        events = (tmp_path / "runs" / "latest" / "workers" / f"worker-{rank}.jsonl").read_text().splitlines()
        lost = [event for event in map(json.loads, events) if event["kind"] == "degraded"]
        assert len(lost) == 1, lost
    assert_nothing_left(os.readlink(tmp_path / "runs" / "latest").rpartition("-")[2])


def wait_for_plan(folder: Path, launch: subprocess.Popen[bytes]) -> Path:
    """The arbitrator's journal, once it holds a plan."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and launch.poll() is None:
        journal = folder / "runs" / "latest" / "arbitrator" / "journal.jsonl"
        if journal.exists() and '"kind": "plan"' in journal.read_text():
            return journal.resolve()
        time.sleep(0.05)
    raise AssertionError((folder / "output").read_text()[-3000:])
