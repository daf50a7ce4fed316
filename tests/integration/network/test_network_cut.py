"""The network between hosts is cut in the middle of training: every worker gives up with its reason, nobody hangs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.testbed import Bed
from benchmarks.testbed.byteps_cluster import BedCluster
from dynamix_ps.config import variables

pytestmark = [pytest.mark.timeout(120), pytest.mark.alone]

TRAINING = """
    import torch
    from torch import nn
    import dynamix_ps.torch as dynamix

    torch.manual_seed(0)
    inputs = torch.randn(400, 6)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = dynamix.attach(model, optimizer, data)
    for x, y in run.batches(iterations=1_000_000):
        optimizer.zero_grad()
        run.backward(nn.functional.mse_loss(model(x), y))
        optimizer.step()
        if run.iteration == 20:
            print("in training", flush=True)
"""
FILE = """
comm: byteps
mode: off
batch: {min: 1}
cluster: {workers: [{batch: 8}, {batch: 8}]}
timeouts: {rpc_s: 0.5, lease_s: 1.0, stall_warn_s: 2.0, stall_fail_s: 4.0}
"""


def test_workers_on_both_sides_of_a_cut_give_up(bed: Bed, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(FILE)
    with BedCluster(bed, TRAINING, 2, lambda pid: None, {variables.CONFIG: str(file)}) as cluster:
        for worker in ("worker-0", "worker-1"):
            cluster.wait_for(worker, "in training", 60)
        bed.unplug("worker-1")
        for worker in ("worker-0", "worker-1"):
            ended = cluster.wait(worker, 45)
            assert ended.returncode == 5, ended.output
            assert "has waited 4 s for the sum of iteration" in ended.output
