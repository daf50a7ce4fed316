"""Invariants 1 to 3 over real processes: torch on BytePS and on the ring, MXNet on BytePS.

Exact gradient, one switch, every sample once, also after a resume; and all workers have the same bits.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from dynamix_ps.apportion import apportion
from dynamix_ps.config.load import dump_config
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import TrainingError
from tests.integration.byteps_cluster import Cluster
from tests.integration.small_training import (
    LEARNING_RATE,
    MOMENTUM,
    NEEDS_MXNET,
    SAMPLES,
    TorchTraining,
    make_data,
)

WORKERS = 3

WORKER = """
import json, os
from dynamix_ps.messages import Plan
from tests.integration.small_training import TRAININGS

job = json.loads(os.environ["TEST_JOB"])
taken = []
rank = int(os.environ["DMLC_WORKER_ID"])
framework = job["frameworks"][rank]
training = TRAININGS[framework](rank, taken)  # another seed on every worker; rank 0's must win
run = training.run
first = training.weights()

# The arbitrator's answers, delayed or lost as the test wants: deliveries[rank] = {iteration: [version, sizes]}
deliveries = {int(i): Plan(v, tuple(s)) for i, (v, s) in job["deliveries"][rank].items()}
newest = [None]
def newest_plan():
    newest[0] = deliveries.get(run.iteration, newest[0])
    return newest[0]
run._session.newest_plan = newest_plan

history = []
for inputs, targets in run.batches(epochs=job.get("epochs"), iterations=job.get("iterations")):
    history.append(run._now.batch.plan.version)
    training.step(inputs, targets)
    if run.iteration == job.get("save_at"):
        run.save(job["checkpoint"])
weights = training.weights()
sizes = run._switch.newest_scheduled.batch_sizes
run.close()
print(json.dumps({"history": history, "taken": taken, "first": first, "weights": weights, "sizes": sizes}))
"""

mxnet = pytest.param("mxnet", "byteps", 2, marks=NEEDS_MXNET)
PLANES = [("torch", "byteps", 0), ("torch", "byteps", 2), ("torch", "gloo", 2), mxnet]  # framework, comm, prefetch


def run_workers(
    folder: Path, framework: str, job: dict[str, Any], sizes: tuple[int, ...], **settings: Any
) -> list[dict[str, Any]]:
    workers = [{"batch": size, "min": 0} for size in sizes]
    config = Config.model_validate(
        {"cluster": {"workers": tuple(workers)}, "batch": {"min": 1}, "seed": 3, "mode": "adapt", **settings}
    )
    file = folder / "cluster.yaml"
    file.write_text(dump_config(config))
    job = {"deliveries": [{}] * len(sizes), "frameworks": [framework] * len(sizes), **job}
    env = {"DYNAMIX_CONFIG": str(file), **job.pop("env", {}), "TEST_JOB": json.dumps(job)}
    with Cluster(WORKER, workers=len(sizes), servers=int(config.comm == "byteps"), env=env) as cluster:
        return cluster.results(timeout_s=90)


def train_alone(batches: list[list[int]]) -> list[float]:
    """One process, with torch, on the concatenated batches: all frameworks must come to this."""
    inputs, targets = map(torch.from_numpy, make_data())
    model = TorchTraining.make_model(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    for batch in batches:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs[batch]), targets[batch]).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


def concatenated(results: list[dict[str, Any]], plans: dict[int, tuple[int, ...]], done: int = 0) -> list[list[int]]:
    """Rebuild every iteration's global batch from what each worker's data set was asked for, `done` samples before."""
    left = [list(result["taken"]) for result in results]
    batches = []
    for version in results[0]["history"]:
        planned = plans[version]
        total, remaining = sum(planned), SAMPLES - done % SAMPLES
        shared = total < remaining < 2 * total  # by the last two iterations of an epoch
        used = apportion(math.ceil(remaining / 2) if shared else min(total, remaining), planned, high=planned)
        batch: list[int] = []
        for rank, size in enumerate(used):
            batch += left[rank][:size]
            del left[rank][: max(size, 1)]  # an empty share fetches one sample, which counts for nothing
        batches.append(batch)
        done += len(batch)
    return batches


PLANS = {0: (8, 8, 8), 1: (3, 0, 21), 2: (16, 5, 2), 3: (0, 0, 30)}


@pytest.mark.timeout(150)
@pytest.mark.parametrize(("framework", "comm", "prefetch"), PLANES)
def test_exact_gradient_one_switch_and_every_sample_once(
    tmp_path: Path, framework: str, comm: str, prefetch: int
) -> None:
    """Plans arrive late on one worker (1), never on another (2), and on all (3)."""
    deliveries = [
        {2: (1, PLANS[1]), 9: (2, PLANS[2]), 14: (3, PLANS[3])},
        {5: (1, PLANS[1]), 14: (3, PLANS[3])},
        {2: (1, PLANS[1]), 9: (2, PLANS[2]), 15: (3, PLANS[3])},
    ]
    job = {"deliveries": deliveries, "epochs": 3}
    results = run_workers(tmp_path, framework, job, PLANS[0], comm=comm, prefetch=prefetch)
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
@pytest.mark.parametrize(("framework", "comm", "prefetch"), PLANES[1:])
def test_a_resume_in_mid_epoch_goes_on_exactly_where_it_stopped(
    tmp_path: Path, framework: str, comm: str, prefetch: int
) -> None:
    checkpoint = str(tmp_path / "last")
    plans = {0: (10, 4, 2), 1: (4, 9, 1)}
    deliveries = [{3: (1, plans[1])}] * WORKERS
    job = {"deliveries": deliveries, "iterations": 8, "save_at": 7, "checkpoint": checkpoint}
    first = run_workers(tmp_path, framework, job, plans[0], comm=comm)
    job = {"epochs": 2, "env": {"DYNAMIX_RESUME": checkpoint}}
    second = run_workers(tmp_path, framework, job, plans[0], comm=comm)
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


@pytest.mark.timeout(150)
@pytest.mark.parametrize(("framework", "comm", "prefetch"), PLANES[1:])
def test_all_workers_have_the_same_bits_after_the_broadcast_and_after_200_steps(
    tmp_path: Path, framework: str, comm: str, prefetch: int
) -> None:
    deliveries = [{i: (i // 20, (3 + i % 7, 1 + i % 5, 9)) for i in range(20, 200, 20)}] * WORKERS
    job = {"deliveries": deliveries, "iterations": 200}
    results = run_workers(tmp_path, framework, job, (8, 8, 8), comm=comm, prefetch=prefetch, lr_rule="adascale")
    assert len(set(results[0]["history"])) == 10
    for result in results:
        assert len(result["history"]) == 200
        assert result["first"] == results[0]["first"]
        assert result["weights"] == results[0]["weights"] != result["first"]


@pytest.mark.timeout(90)
@NEEDS_MXNET
def test_a_job_of_two_frameworks_is_refused_by_every_worker() -> None:
    env = {"TEST_JOB": json.dumps({"frameworks": ["torch", "mxnet", "torch"]})}
    with Cluster(WORKER, workers=WORKERS, env=env) as cluster:
        ended = [cluster.wait(f"worker-{rank}", timeout_s=60) for rank in range(WORKERS)]
    for one in ended:
        assert one.returncode == TrainingError.exit_code
        assert "one framework, found 2 with torch, 1 with mxnet; start them with one script" in one.output
