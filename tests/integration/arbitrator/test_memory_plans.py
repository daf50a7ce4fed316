"""What fits into the memory of one worker bounds the plans of the arbitrator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dynamix_ps.run_record.run_folder import RunFolder
from tests.launching import cluster_file, dynamix, ends_clean

pytestmark = pytest.mark.timeout(120)

FITS = 10
TRAINING = f"""
import torch
import dynamix_ps.torch as dynamix

class Small(torch.nn.Linear):
    largest = 0

    def forward(self, x):
        if run.rank == 1 and len(x) > {FITS}:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.largest = max(self.largest, len(x))
        return super().forward(x)

torch.manual_seed(0)
inputs = torch.randn(2000, 3)
model = Small(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
run = dynamix.attach(model, optimizer, data)
for x, y in run.batches(iterations=100_000):
    optimizer.zero_grad()
    run.backward(torch.nn.functional.mse_loss(model(x), y))
    optimizer.step()
    if run.training.plans.applied >= 3:  # the same on all workers
        break
print("worker", run.rank, "computed at most", model.largest, "samples at once")
run.close()
"""


def test_plans_stay_within_what_fits_into_the_memory_of_one_worker(tmp_path: Path) -> None:
    (tmp_path / "training.py").write_text(TRAINING)
    extra = "memory: auto\nwindow: 5\nbatch: {min: 4, max: 64}\npolicy: {name: random}\nmetrics: {network: 'off'}\n"
    file = cluster_file(tmp_path, extra, workers="[{batch: 32}, {batch: 32}, {batch: 32}]", comm="gloo", mode="adapt")
    process = dynamix("launch", "-c", str(file), "--", "python", "training.py", cwd=tmp_path)
    output = ends_clean(process)
    assert process.returncode == 0, output
    folder = RunFolder((tmp_path / "runs" / "latest").resolve())
    journal = [json.loads(line) for line in folder.journal_file.read_text().splitlines()]
    plans = [line["batch_sizes"] for line in journal if line["kind"] == "plan"]
    assert len(plans) >= 3
    assert all(4 <= second <= FITS for _, second, _ in plans), plans
    assert any(first > FITS for first, _, _ in plans)
    largest = next(line for line in output.splitlines() if "worker 1 computed at most" in line)
    assert int(largest.split("at most ")[1].split()[0]) <= FITS
    assert "samples at once did not fit" in (folder.path / "summary.md").read_text()
