"""Invariants 1 to 3 over real processes, on BytePS and on the ring.

Exact gradient, one switch, every sample once, also after a resume; and all workers have the same bits.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dynamix_ps.config import Config
from dynamix_ps.config_file import dump_config
from dynamix_ps.policy.apportion import apportion
from tests.integration.byteps_cluster import Cluster

SAMPLES = 157
WORKERS = 3

WORKER = """
import json, os, sys
import torch
from torch import nn
import worker_hooks.torch as dynamix
from dynamix_ps.messages import Plan
from tests.integration.test_invariants import SAMPLES, make_data, make_model

job = json.loads(os.environ["TEST_JOB"])
inputs, targets = make_data()
taken = []

class Recorded(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES
    def __getitem__(self, index):
        taken.append(index)
        return inputs[index], targets[index]

rank = int(os.environ["DMLC_WORKER_ID"])
model = make_model(seed=rank)  # differs; rank 0's must win
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
run = dynamix.attach(model, optimizer, Recorded())

# The arbitrator's answers, delayed or lost as the test wants: deliveries[rank] = {iteration: [version, sizes]}
deliveries = {int(i): Plan(v, tuple(s)) for i, (v, s) in job["deliveries"][rank].items()}
newest = [None]
def newest_plan():
    newest[0] = deliveries.get(run.iteration, newest[0])
    return newest[0]
run._session.newest_plan = newest_plan

history = []
for x, y in run.batches(epochs=job.get("epochs"), iterations=job.get("iterations")):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    history.append(run._batch.plan.version)
    run.backward(loss)
    optimizer.step()
    if run.iteration == job.get("save_at"):
        run.save(job["checkpoint"])
weights = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
sizes = run._switch.newest_scheduled.batch_sizes
run.close()
print(json.dumps({"history": history, "taken": taken, "weights": weights, "sizes": sizes}))
"""


def make_data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(SAMPLES, 5, generator=generator, dtype=torch.float64)
    return inputs, torch.randn(SAMPLES, 2, generator=generator, dtype=torch.float64)


def make_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)).double()


def run_workers(folder: Path, job: dict[str, Any], sizes: tuple[int, ...], **settings: Any) -> list[dict[str, Any]]:
    workers = [{"batch": size, "min": 0} for size in sizes]
    config = Config.model_validate(
        {"cluster": {"workers": tuple(workers)}, "batch": {"min": 1}, "seed": 3, "mode": "adapt", **settings}
    )
    file = folder / "cluster.yaml"
    file.write_text(dump_config(config))
    job.setdefault("deliveries", [{}] * len(sizes))
    env = {"DYNAMIX_CONFIG": str(file), "TEST_JOB": json.dumps(job), **job.pop("env", {})}
    with Cluster(WORKER, workers=len(sizes), servers=int(config.comm == "byteps"), env=env) as cluster:
        return cluster.results(timeout_s=90)


def train_alone(batches: list[list[int]]) -> list[float]:
    """One process on the concatenated batches."""
    inputs, targets = make_data()
    model = make_model(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for batch in batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs[batch]), targets[batch]).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


def concatenated(results: list[dict[str, Any]], plans: dict[int, tuple[int, ...]], done: int = 0) -> list[list[int]]:
    """Rebuild every iteration's global batch from what each worker's data set was asked for, `done` samples before."""
    left = [list(result["taken"]) for result in results]
    batches = []
    for version in results[0]["history"]:
        planned = plans[version]
        remaining = SAMPLES - done % SAMPLES
        used = planned if sum(planned) <= remaining else apportion(remaining, planned, high=planned)
        batch: list[int] = []
        for rank, size in enumerate(used):
            batch += left[rank][:size]
            del left[rank][: max(size, 1)]  # an empty share fetches one sample, which counts for nothing
        batches.append(batch)
        done += len(batch)
    return batches


PLANS = {0: (8, 8, 8), 1: (3, 0, 21), 2: (16, 5, 2), 3: (0, 0, 30)}


@pytest.mark.timeout(150)
@pytest.mark.parametrize(("comm", "prefetch"), [("byteps", 0), ("byteps", 2), ("gloo", 2)])
def test_exact_gradient_one_switch_and_every_sample_once(tmp_path: Path, comm: str, prefetch: int) -> None:
    """Plans arrive late on one worker (1), never on another (2), and on all (3)."""
    deliveries = [
        {2: (1, PLANS[1]), 9: (2, PLANS[2]), 14: (3, PLANS[3])},
        {5: (1, PLANS[1]), 14: (3, PLANS[3])},
        {2: (1, PLANS[1]), 9: (2, PLANS[2]), 15: (3, PLANS[3])},
    ]
    job = {"deliveries": deliveries, "epochs": 3}
    results = run_workers(tmp_path, job, PLANS[0], comm=comm, prefetch=prefetch)
    history = results[0]["history"]
    assert all(result["history"] == history for result in results), "workers ran different plans in one iteration"
    assert history.index(1) == 6 + prefetch, "plan 1 starts after its last worker got it, later by the prefetch"
    assert 2 not in history, "a plan that one worker never got must not start"
    assert history.index(3) == 16 + prefetch

    batches = concatenated(results, PLANS)
    order = [index for batch in batches for index in batch]
    for epoch in range(3):
        assert sorted(order[epoch * SAMPLES : (epoch + 1) * SAMPLES]) == list(range(SAMPLES))
    alone = train_alone(batches)
    for result in results:
        assert result["weights"] == pytest.approx(alone, rel=1e-6, abs=1e-9)
        assert result["weights"] == results[0]["weights"], "not the same bits on all workers"


@pytest.mark.timeout(200)
@pytest.mark.parametrize("comm", ["byteps", "gloo"])
def test_a_resume_in_mid_epoch_goes_on_exactly_where_it_stopped(tmp_path: Path, comm: str) -> None:
    checkpoint = str(tmp_path / "last.pt")
    plans = {0: (10, 4, 2), 1: (4, 9, 1)}
    deliveries = [{3: (1, plans[1])}] * WORKERS
    first = run_workers(
        tmp_path,
        {"deliveries": deliveries, "iterations": 8, "save_at": 7, "checkpoint": checkpoint},
        plans[0],
        comm=comm,
    )
    second = run_workers(tmp_path, {"epochs": 2, "env": {"DYNAMIX_RESUME": checkpoint}}, plans[0], comm=comm)
    assert second[0]["sizes"] == list(plans[1]), "the plan in force is part of a checkpoint"
    assert [set(result["history"]) for result in second] == [{1}] * WORKERS

    before = concatenated(first, plans)[:7]  # the iteration after the checkpoint is done again
    after = concatenated(second, plans, done=sum(map(len, before)))
    order = [index for batch in before + after for index in batch]
    assert len(order) == 2 * SAMPLES
    assert sorted(order[:SAMPLES]) == sorted(order[SAMPLES:]) == list(range(SAMPLES))
    alone = train_alone(before + after)
    for result in second:
        assert result["weights"] == pytest.approx(alone, rel=1e-6, abs=1e-9)
