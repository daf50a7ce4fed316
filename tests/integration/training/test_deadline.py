"""`policy.deadline` over real processes: a worker that is late ends its backward pass early, exactly.

Every sample is in one sum per epoch, the weights are those of one process on the samples that were processed, and a
resume goes on with what is owed.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from dynamix_ps.config.load import dump_config
from dynamix_ps.config.schema import Config
from tests.all_forked_cluster import AllForkedCluster
from tests.integration.training.small_training import SAMPLES, make_data

WORKERS, EPOCHS = 3, 6
SIZES = (2, 8, 2)

MODEL = """
import torch, time
from torch import nn
from tests.integration.training.small_training import LEARNING_RATE, MOMENTUM, make_data, make_weights

class Slow(torch.autograd.Function):
    seconds = 0.0  # of a row

    @staticmethod
    def forward(ctx, rows):
        return rows.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(Slow.seconds * len(gradient))
        return gradient

class Model(nn.Sequential):
    def forward(self, rows):
        return super().forward(Slow.apply(rows + 0 * self[0].bias.sum()))

def made(seed):
    model = Model(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)).double()
    with torch.no_grad():
        for parameter, values in zip(model.parameters(), make_weights(seed), strict=True):
            parameter.copy_(torch.from_numpy(values))
    return model, torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
"""

WORKER = (
    MODEL
    + """
import json, os
import dynamix_ps.torch as dynamix

job, rank = json.loads(os.environ["TEST_JOB"]), int(os.environ["DMLC_WORKER_ID"])
model, optimizer = made(rank)
run = dynamix.attach(model, optimizer, torch.utils.data.TensorDataset(*map(torch.from_numpy, make_data())))
sums, left = [], []
for inputs, targets in run.batches(epochs=job["epochs"], iterations=job.get("iterations")):
    Slow.seconds = 0.016 if rank == 1 and run.iteration % 5 in (1, 2) else 0.002
    optimizer.zero_grad()
    now = run.training.now
    if job.get("weighted"):
        run.backward(nn.functional.mse_loss(model(inputs), targets), weight=float(len(inputs)))
    else:
        run.backward(nn.functional.mse_loss(model(inputs), targets))
    step = now.batch.step
    left.append(step.sizes[rank] - now.spent[rank])
    sums.append(run.training.data.sampler.indices(step, rank).tolist()[left[-1] :])
    optimizer.step()
    if run.iteration == job.get("save_at"):
        run.save(job["checkpoint"])
weights = [value for parameter in model.parameters() for value in parameter.detach().flatten().tolist()]
run.close()
print(json.dumps({"sums": sums, "left": left, "weights": weights}))
"""
)


def trained(folder: Path, job: dict[str, Any], **settings: Any) -> list[dict[str, Any]]:
    entries = [{"batch": size, "min": 1} for size in SIZES]
    policy = {"name": "static", "deadline": 1.3}
    config = Config.model_validate(
        {"cluster": {"workers": tuple(entries)}, "batch": {"min": 1}, "seed": 3, "policy": policy, **settings}
    )
    file = folder / "cluster.yaml"
    file.write_text(dump_config(config))
    env = {"DYNAMIX_CONFIG": str(file), **job.pop("env", {}), "TEST_JOB": json.dumps(job)}
    servers = int(config.comm == "byteps")
    with AllForkedCluster(WORKER, WORKERS, frameworks=["torch"] * WORKERS, servers=servers, env=env) as cluster:
        return cluster.results(timeout_s=90)


def batches_of(results: list[dict[str, Any]]) -> list[list[int]]:
    """The samples of every iteration, those of all workers."""
    return [[number for part in parts for number in part] for parts in zip(*(r["sums"] for r in results), strict=True)]


def alone(batches: list[list[int]]) -> list[float]:
    """The weights of one process that takes these batches."""
    own: dict[str, Any] = {}
    exec(MODEL, own)
    model, optimizer = own["made"](0)
    inputs, targets = map(torch.from_numpy, make_data())
    for batch in batches:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs[batch]), targets[batch]).backward()
        optimizer.step()
    return [value for parameter in model.parameters() for value in parameter.detach().flatten().tolist()]


def assert_every_sample_once(batches: list[list[int]]) -> None:
    seen = Counter(number for batch in batches for number in batch)
    assert seen == Counter(dict.fromkeys(range(SAMPLES), EPOCHS))


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    "settings",
    [
        {"comm": "byteps", "prefetch": 2},
        {"comm": "gloo", "prefetch": 0},
        {"comm": "gloo", "prefetch": 2, "overlap": "next_forward"},
    ],
    ids=str,
)
def test_a_late_worker_sends_what_it_has_and_the_rest_comes_again(tmp_path: Path, settings: dict[str, Any]) -> None:
    results = trained(tmp_path, {"epochs": EPOCHS}, **settings)
    assert sum(map(bool, results[1]["left"])) > 3, "worker 1 was late, and has left samples"
    batches = batches_of(results)
    assert_every_sample_once(batches)
    weights = alone(batches)
    for result in results:
        assert result["weights"] == pytest.approx(weights, rel=1e-6, abs=1e-9)
        assert result["weights"] == results[0]["weights"], "not the same bits on all workers"


@pytest.mark.timeout(250)
def test_a_resume_in_mid_epoch_trains_what_is_owed(tmp_path: Path) -> None:
    settings = {"comm": "gloo", "prefetch": 2}
    job = {"epochs": EPOCHS, "iterations": 38, "save_at": 38, "checkpoint": str(tmp_path / "saved")}
    before = trained(tmp_path, job, **settings)
    assert any(before[1]["left"][-3:]), "samples are owed there"
    after = trained(tmp_path, {"epochs": EPOCHS, "env": {"DYNAMIX_RESUME": str(tmp_path / "saved")}}, **settings)
    batches = batches_of(before) + batches_of(after)
    assert_every_sample_once(batches)
    assert after[0]["weights"] == pytest.approx(alone(batches), rel=1e-6, abs=1e-9)


@pytest.mark.timeout(150)
def test_a_script_that_gives_weights_runs_to_the_end_of_its_batches(tmp_path: Path) -> None:
    results = trained(tmp_path, {"epochs": 3, "weighted": True}, comm="gloo")
    assert not any(samples for result in results for samples in result["left"])
