"""The gradient noise scale over real BytePS with three unequal workers, on a problem with a known noise scale."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from dynamix_ps.config.load import dump_config
from dynamix_ps.config.schema import Config
from dynamix_ps.run_record.run_folder import RunFolder
from tests.all_forked_cluster import AllForkedCluster

SIZES = (16, 32, 80)
SAMPLES = 20_000
ITERATIONS = 2_500
SCALES = (0.5, 2, 8)  # B / B0 at which the gain of AdaScale is asked for

WORKER = """
import json
import torch
import dynamix_ps.torch as dynamix
from tests.integration.training.test_noise_scale import ITERATIONS, SCALES, SIZES, Point, make_data

model = Point()
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # stays where it is, and so does the noise scale
run = dynamix.attach(model, optimizer, make_data())
for (points,) in run.batches(iterations=ITERATIONS):
    optimizer.zero_grad()
    run.backward(((model(points) ** 2).sum(dim=1) / 2).mean())
    optimizer.step()
run.close()
print(json.dumps([run.training.plans.rate.factor(scale * sum(SIZES)) for scale in SCALES]))
"""


class Point(torch.nn.Module):
    """Loss |w - x|^2 / 2 at w = 0: the gradient of one sample is -x."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(32))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.w - points


def make_data() -> torch.utils.data.TensorDataset:
    generator = torch.Generator().manual_seed(5)
    deviation = torch.tensor([0.5, 1.0, 2.0, 3.0]).repeat(8)
    return torch.utils.data.TensorDataset(0.5 + deviation * torch.randn(SAMPLES, 32, generator=generator))


@pytest.mark.timeout(120)
def test_the_estimate_is_within_five_percent_of_the_truth(tmp_path: Path) -> None:
    (points,) = make_data().tensors
    signal = float((points.mean(dim=0) ** 2).sum())
    variance = float(points.var(dim=0).sum())
    cluster_file = {"cluster": {"workers": tuple({"batch": size} for size in SIZES)}, "batch": {"min": 1}}
    config = Config.model_validate(cluster_file | {"mode": "observe", "lr_rule": "adascale"})
    (tmp_path / "cluster.yaml").write_text(dump_config(config))
    folder = RunFolder(tmp_path)
    folder.workers_dir.mkdir()
    env = {"DYNAMIX_CONFIG": str(tmp_path / "cluster.yaml"), "DYNAMIX_RUN_DIR": str(tmp_path)}
    with AllForkedCluster(WORKER, workers=len(SIZES), env=env) as cluster:
        factors = cluster.results(timeout_s=90)
    estimates = []
    for rank in range(len(SIZES)):
        lines = map(json.loads, folder.worker_file(rank).read_text().splitlines())
        known = [line for line in lines if line["kind"] == "window" and line["noise_variance"] is not None]
        estimates.append([(line["noise_variance"], line["noise_signal"]) for line in known])
    assert len(estimates[0]) >= 100
    assert estimates[0] == estimates[1] == estimates[2], "every worker knows the same global state"
    found_variance, found_signal = np.mean(estimates[0], axis=0)
    assert found_variance == pytest.approx(variance, rel=0.05)
    assert found_signal == pytest.approx(signal, rel=0.05)
    assert found_variance / found_signal == pytest.approx(variance / signal, rel=0.05)

    assert factors[0] == factors[1] == factors[2], "all workers step with the same rate, bit by bit"
    noise = variance / sum(SIZES)
    assert factors[0] == pytest.approx([(noise + signal) / (noise / scale + signal) for scale in SCALES], rel=0.05)
