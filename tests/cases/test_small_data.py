"""The sizes of a plan are no more than a pass over the data together, and plans go on to the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.studies.membership.decided_windows import read_lines
from dynamix_ps.run_record.run_folder import RunFolder
from tests.cases.scripts.small_data import ITERATIONS
from tests.launching import cluster_file, dynamix, ends

FILE = """\
batch: {min: 4, max: 256}
window: 6
metrics: {network: off, tensorboard: false, prometheus_port: null}
"""
SCRIPT = ("--", "python", "-m", "tests.cases.scripts.small_data")


def run_of(folder: Path, plane: str, policy: str, command: str, *options: str, plans: int = 2) -> RunFolder:
    """A run in `folder` to its end, after so many plans. Of a rehearsal, the run of its first seed."""
    extra = f"{FILE}policy: {{name: {policy}}}\n"
    file = cluster_file(folder, extra, workers="[{batch: 16}, {batch: 16}]", comm=plane, mode="adapt")
    process = dynamix(command, "-c", str(file), *options, *SCRIPT, str(plans), cwd=folder)
    ends(process, 0, limit_s=100)
    return RunFolder(next(path.parent for path in folder.rglob("workers")))


def check(run: RunFolder, fewest_plans: int = 2) -> None:
    lines = read_lines(run)
    windows = [line for line in lines if line["kind"] == "window"]
    assert max(line["first_iteration"] + line["iterations"] for line in windows) >= ITERATIONS - 20
    assert {line["data_size"] for line in windows} == {64}
    plans = [line for line in lines if line["kind"] == "plan_applied"]
    assert len(plans) >= fewest_plans and all(sum(plan["batch_sizes"]) <= 64 for plan in plans)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("plane", "policy"), [("byteps", "random"), ("gloo", "goodput"), ("gloo", "stigmergy")])
def test_plans_are_within_the_data(tmp_path: Path, plane: str, policy: str) -> None:
    plans = 0 if policy == "goodput" else 2
    check(run_of(tmp_path, plane, policy, "launch", plans=plans), plans)


@pytest.mark.timeout(120)
def test_so_are_those_of_a_rehearsal(tmp_path: Path) -> None:
    options = ("--policy", "random", "--seeds", "1", "--target", "loss=1e9")
    check(run_of(tmp_path, "gloo", "random", "rehearse", *options))
