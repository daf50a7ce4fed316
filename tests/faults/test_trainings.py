"""Workers of a real training do different things; training_rows.py has the rows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.faults.job import output_of
from tests.faults.table import TrainingFault
from tests.faults.training_rows import TRAINING_FAULTS
from tests.launching import assert_nothing_left, cluster_file, dynamix, kill_all, run_id_in

pytestmark = pytest.mark.timeout(120)

SCRIPT = """
import os, signal, sys, time
import torch
from torch import nn
import dynamix_ps.torch as dynamix

rank = int(os.environ["DMLC_WORKER_ID"])
torch.manual_seed(0)
inputs = torch.randn(400, 6)
data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
iterations = 30
if rank == 1:
    exec({before!r})
run = dynamix.attach(model, optimizer, data)
for x, y in run.batches(iterations=iterations):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    if rank == 1 and run.iteration == 6:
        exec({within!r})
    run.backward(loss)
    optimizer.step()
"""
# By TCP, so that a server has a part in the sums.
SETTINGS = (
    'window: 5\nbatch: {min: 1}\nemulation: none\nenv: {DYNAMIX_SHARED_MEMORY: "0"}\n'
    "timeouts: {rpc_s: 0.5, lease_s: 1.0, stall_warn_s: 2.0, stall_fail_s: 8.0}\n"
)


@pytest.mark.parametrize("row", TRAINING_FAULTS, ids=lambda row: row.key)
def test_workers_that_do_different_things(tmp_path: Path, row: TrainingFault) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(before=row.before, within=row.within))
    file = cluster_file(tmp_path, SETTINGS, workers="[{batch: 24}, {batch: 40}]", comm=row.comm, mode="adapt")
    process = dynamix("launch", "-c", str(file), "--", "python", "train.py", cwd=tmp_path)
    output = output_of(process)
    try:
        assert process.returncode == row.outcome.exit_code, output
        assert re.search(row.outcome.says, output), output
        assert_nothing_left(run_id_in(output))
    finally:
        kill_all(run_id_in(output), [process])
