"""Three runs of a job in which one worker is slow: the second begins where the first has ended, and the third, whose
profile is wrong, says so and goes back to its first sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dynamix_ps.run_record.run_folder import RunFolder
from tests.launching import assert_nothing_left, cluster_file, dynamix, ends, kill_all, run_id_in, summary_in

FIRST = [16, 16]
# Trains until so many iterations have followed the first one with this plan, or a newer one.
TRAIN = """\
import sys, time
import torch
import dynamix_ps.torch as dynamix
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(4000, 20), torch.randint(0, 4, (4000,)))
model = torch.nn.Linear(20, 4)
plan, iterations = map(int, sys.argv[1:])
run = dynamix.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), data)
for inputs, targets in run.batches(epochs=1_000_000):
    time.sleep((0.001 if run.rank else 0.004) * len(inputs))
    run.optimizers[0].zero_grad()
    run.backward(torch.nn.functional.cross_entropy(model(inputs), targets))
    run.optimizers[0].step()
    iterations -= run.training.plans.applied >= plan
    if iterations < 0:
        break
run.close()
"""


def trained(folder: Path, plan: int, iterations: int) -> tuple[list[dict[str, Any]], list[list[int]]]:
    """What the arbitrator has journaled, and the sizes of the plans that were in force."""
    launcher = dynamix(
        *("launch", "-c", str(folder / "cluster.yaml"), "--", "python", "train.py", str(plan), str(iterations)),
        cwd=folder,
        DYNAMIX_CACHE=str(folder / "cache"),
    )
    output = ""
    try:
        output = ends(launcher, 0)
        assert_nothing_left(run_id_in(output))
    finally:
        kill_all(run_id_in(output) if output else "no such run", [launcher])
    run = RunFolder((folder / "runs" / "latest").resolve())
    files = (run.journal_file, run.worker_file(1))
    journal, worker = ([json.loads(line) for line in file.read_text().splitlines()] for file in files)
    applied = [line for line in worker if line["kind"] == "plan_applied"]
    assert all(line["lr_factor"] == 1 for line in applied), "the global batch is always the first one"
    return journal, [line["batch_sizes"] for line in applied]


@pytest.mark.timeout(240)
def test_a_job_begins_with_the_sizes_of_the_run_before(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    extra = "batch: {min: 2, max: 64}\nwindow: 5\nlr_rule: linear\npolicy: {name: proportional, remember: true}\n"
    cluster_file(tmp_path, extra, workers="[{batch: 16}, {batch: 16}]", comm="gloo", mode="adapt")

    journal, plans = trained(tmp_path, 1, 100)
    assert not [line for line in journal if line["kind"] in ("adopted", "remembered", "degraded")]
    assert plans and plans[-1][0] < plans[-1][1]
    (file,) = (tmp_path / "cache" / "speeds").iterdir()
    profile = json.loads(file.read_text())
    assert profile["per_sample_s"][0] > 1.5 * profile["per_sample_s"][1]

    journal, plans = trained(tmp_path, 1, 0)
    (remembered,) = (line["batch_sizes"] for line in journal if line["kind"] == "remembered")
    assert plans[0] == remembered and sum(remembered) == sum(FIRST)
    assert remembered[0] <= FIRST[0] / 1.5

    wrong = {**profile, "per_sample_s": profile["per_sample_s"][::-1], "fixed_s": profile["fixed_s"][::-1]}
    file.write_text(json.dumps(wrong))
    _, plans = trained(tmp_path, 2, 0)
    assert plans[0] == remembered[::-1], "the slow worker has most"
    assert plans[1] == FIRST
    (degraded,) = (line for line in summary_in(tmp_path)["degraded"] if "remembered speeds" in line)
    assert "worker 0 computes" in degraded
