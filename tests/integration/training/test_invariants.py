"""Invariants 1 to 3 over real processes: torch on BytePS and on the ring, MXNet on BytePS.

Exact gradient, one switch, every sample once, also after a resume; and all workers have equal bits.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from dynamix_ps.apportion import apportion
from dynamix_ps.config.load import dump_config
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import TrainingError
from tests.all_forked_cluster import AllForkedCluster
from tests.integration.training.small_training import (
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
from tests.integration.training.small_training import TRAININGS

job = json.loads(os.environ["TEST_JOB"])
if slots := job.get("slots"):  # of the workers that there are; the other ones are empty
    from worker_hooks.workers import Workers

    def in_slots(cls, comm):
        return cls(job["of"], range(slots[comm.rank], slots[comm.rank] + 1), tuple(slots))

    Workers.one_per_process = classmethod(in_slots)

taken = []
rank = int(os.environ["DMLC_WORKER_ID"])
framework = job["frameworks"][rank]
training = TRAININGS[framework](rank, taken)  # another seed on every worker; rank 0's must win
run = training.run
taken.clear()  # attach() compares a few samples between workers
first = training.weights()

# The arbitrator's answers, delayed or lost as the test wants: deliveries[rank] = {iteration: [version, sizes]}
deliveries = {int(i): Plan(v, tuple(s)) for i, (v, s) in job["deliveries"][rank].items()}
newest = [None]
def newest_plan():
    newest[0] = deliveries.get(run.iteration, newest[0])
    return newest[0]
run.training.session.newest_plan = newest_plan

history, used = [], []
for inputs, targets in run.batches(epochs=job.get("epochs"), iterations=job.get("iterations")):
    history.append(run.training.now.batch.plan.version)
    used.append(run.training.now.batch.step.sizes)
    training.step(inputs * float("nan") if [rank, run.iteration] in job.get("broken", []) else inputs, targets)
    if run.iteration == job.get("save_at"):
        run.save(job["checkpoint"])
weights = training.weights()
sizes, guard = run.training.plans.switch.newest_scheduled.batch_sizes, run.training.plans.rate.guard
run.close()
told = {"history": history, "used": used, "taken": taken, "first": first, "weights": weights}
print(json.dumps({**told, "sizes": sizes, "guard": guard}))
"""

PLANES = [  # framework, comm, prefetch
    pytest.param(plane, marks=NEEDS_MXNET if plane[0] == "mxnet" else (), id="-".join(map(str, plane)))
    for plane in (("torch", "byteps", 0), ("torch", "byteps", 2), ("torch", "gloo", 2), ("mxnet", "byteps", 2))
]


def run_workers(
    folder: Path, framework: str, job: dict[str, Any], sizes: tuple[int, ...], **settings: Any
) -> list[dict[str, Any]]:
    entries = [{"batch": size, "min": 0} for size in sizes]
    config = Config.model_validate(
        {"cluster": {"workers": tuple(entries)}, "batch": {"min": 1}, "seed": 3, "mode": "adapt", **settings}
    )
    file = folder / "cluster.yaml"
    file.write_text(dump_config(config))
    workers = len(job.get("slots", sizes))
    job = {"deliveries": [{}] * workers, "frameworks": [framework] * workers, "of": len(sizes), **job}
    env = {"DYNAMIX_CONFIG": str(file), **job.pop("env", {}), "TEST_JOB": json.dumps(job)}
    servers = int(config.comm == "byteps")
    with AllForkedCluster(WORKER, workers, frameworks=[framework] * workers, servers=servers, env=env) as cluster:
        return cluster.results(timeout_s=90)


def train_alone(batches: list[list[int]], tuned_batch: int | None = None, framework: str = "torch") -> list[float]:
    """One process, with torch, on the concatenated batches: all frameworks must come to this.

    `tuned_batch`: the learning rate is for so many samples, and follows the batch in proportion. Then SGD of MXNet
    differs from that of torch: in its momentum, each gradient keeps the rate that it had.
    """
    inputs, targets = map(torch.from_numpy, make_data())
    model = TorchTraining.make_model(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    for batch in batches:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs[batch]), targets[batch]).backward()
        if tuned_batch is not None:
            rate = LEARNING_RATE * len(batch) / tuned_batch
            optimizer.param_groups[0]["lr"] = 1.0 if framework == "mxnet" else rate
            for parameter in model.parameters() if framework == "mxnet" else ():
                parameter.grad.mul_(rate)
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
EPOCHS, SAVED_AT = 3, 12  # iteration 12 is in the middle of the second epoch, under plan 1


@dataclass(frozen=True, slots=True)
class Trained:
    """One training of EPOCHS epochs on a data plane, and its checkpoint of iteration SAVED_AT."""

    framework: str
    settings: dict[str, Any]
    checkpoint: Path
    results: list[dict[str, Any]]


@pytest.fixture(scope="module")
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Plans arrive late on one worker (1), never on another (2), and on all (3)."""
    framework, comm, prefetch = request.param
    folder = tmp_path_factory.mktemp("trained")
    deliveries = [
        {2: (1, PLANS[1]), 9: (2, PLANS[2]), 14: (3, PLANS[3])},
        {5: (1, PLANS[1]), 14: (3, PLANS[3])},
        {2: (1, PLANS[1]), 9: (2, PLANS[2]), 15: (3, PLANS[3])},
    ]
    checkpoint, settings = folder / "last", {"comm": comm, "prefetch": prefetch}
    job = {"deliveries": deliveries, "epochs": EPOCHS, "save_at": SAVED_AT, "checkpoint": str(checkpoint)}
    return Trained(framework, settings, checkpoint, run_workers(folder, framework, job, PLANS[0], **settings))


def assert_every_sample_once_per_epoch(batches: list[list[int]]) -> None:
    order = [index for batch in batches for index in batch]
    assert len(order) == EPOCHS * SAMPLES
    for first in range(0, EPOCHS * SAMPLES, SAMPLES):
        assert sorted(order[first : first + SAMPLES]) == list(range(SAMPLES))


@pytest.mark.timeout(150)
@pytest.mark.parametrize("trained", PLANES, indirect=True)
def test_exact_gradient_one_switch_and_every_sample_once(trained: Trained) -> None:
    results, prefetch = trained.results, trained.settings["prefetch"]
    history = results[0]["history"]
    assert all(result["history"] == history for result in results), "workers ran different plans in one iteration"
    assert history.index(1) == 6 + prefetch, "plan 1 starts after its last worker got it, later by the prefetch"
    assert 2 not in history, "a plan that one worker never got must not start"
    assert history.index(3) == 16 + prefetch

    batches = concatenated(results, PLANS)
    assert_every_sample_once_per_epoch(batches)
    alone = train_alone(batches)
    for result in results:
        assert result["weights"] == pytest.approx(alone, rel=1e-6, abs=1e-9)
        assert result["weights"] == results[0]["weights"], "not the same bits on all workers"


@pytest.mark.timeout(200)
@pytest.mark.parametrize("trained", [PLANES[0], *PLANES[2:]], indirect=True)  # without and with prefetch
def test_a_resume_in_mid_epoch_goes_on_exactly_where_it_stopped(tmp_path: Path, trained: Trained) -> None:
    job = {"epochs": EPOCHS, "env": {"DYNAMIX_RESUME": str(trained.checkpoint)}}
    resumed = run_workers(tmp_path, trained.framework, job, PLANS[0], **trained.settings)
    assert resumed[0]["sizes"] == list(PLANS[1]), "the plan in force is part of a checkpoint"
    assert [set(result["history"]) for result in resumed] == [{1}] * WORKERS

    before = concatenated(trained.results, PLANS)[:SAVED_AT]  # what came after the checkpoint is done again
    after = concatenated(resumed, PLANS, done=sum(map(len, before)))
    assert_every_sample_once_per_epoch(before + after)
    alone = train_alone(before + after)
    for result in resumed:
        assert result["weights"] == pytest.approx(alone, rel=1e-6, abs=1e-9)


@pytest.mark.timeout(250)
@pytest.mark.parametrize("plane", PLANES[2:])
def test_a_resume_with_fewer_and_then_with_more_workers_goes_on_exactly(
    tmp_path: Path, plane: tuple[str, str, int]
) -> None:
    """The global batch stays, and with it the learning rate, whatever the first sizes in the cluster file are."""
    framework, comm, prefetch = plane
    jobs = [  # first sizes, the sizes that they come to, iterations after which the job is saved and ends
        ((12, 4, 8), (12, 4, 8), 9),
        ((20, 10), (16, 8), 16),
        ((8, 8, 8, 8), (6, 6, 6, 6), None),
    ]
    batches: list[list[int]] = []
    for number, (first_sizes, sizes, end) in enumerate(jobs):
        job = {"epochs": EPOCHS, "iterations": end, "save_at": end, "checkpoint": str(tmp_path / str(number))}
        if number:
            job["env"] = {"DYNAMIX_RESUME": str(tmp_path / str(number - 1))}
        settings = {"comm": comm, "prefetch": prefetch, "lr_rule": "linear"}
        results = run_workers(tmp_path, framework, job, first_sizes, **settings)
        assert results[0]["sizes"] == list(sizes)
        batches += concatenated(results, {0: sizes}, done=sum(map(len, batches)))
    assert_every_sample_once_per_epoch(batches)
    alone = train_alone(batches, 24, framework)
    for result in results:
        assert result["weights"] == pytest.approx(alone, rel=1e-6, abs=1e-9)
        assert result["weights"] == results[0]["weights"], "not the same bits on all workers"


@pytest.mark.timeout(150)
@pytest.mark.parametrize("plane", PLANES[2:3])
def test_workers_that_are_missing_lose_no_sample_and_their_shares_go_to_the_others(
    tmp_path: Path, plane: tuple[str, str, int]
) -> None:
    framework, comm, prefetch = plane
    slots, sizes = (1, 3), (4, 8, 4, 8)
    job = {"slots": slots, "epochs": EPOCHS}
    results = run_workers(tmp_path, framework, job, sizes, comm=comm, prefetch=prefetch, lr_rule="linear")
    left, batches = [list(result["taken"]) for result in results], list[list[int]]()
    for used in results[0]["used"]:
        batches.append([])
        for one, slot in zip(left, slots, strict=True):
            batches[-1] += one[: used[slot]]
            del one[: used[slot]]
    assert [len(batch) for batch in batches[: prefetch + 3]] == [16] * (prefetch + 1) + [24] * 2
    assert results[0]["sizes"] == [0, 12, 0, 12]
    assert_every_sample_once_per_epoch(batches)
    alone = train_alone(batches, tuned_batch=24)
    for result in results:
        assert result["weights"] == pytest.approx(alone, rel=1e-6, abs=1e-9)
        assert result["weights"] == results[0]["weights"], "not the same bits on all workers"


@pytest.mark.timeout(150)
@pytest.mark.parametrize("plane", PLANES[1:])
def test_all_workers_have_the_same_bits_after_the_broadcast_and_after_200_steps(
    tmp_path: Path, plane: tuple[str, str, int]
) -> None:
    framework, comm, prefetch = plane
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
    frameworks = ["torch", "mxnet", "torch"]
    env = {"TEST_JOB": json.dumps({"frameworks": frameworks})}
    with AllForkedCluster(WORKER, WORKERS, frameworks=frameworks, env=env) as cluster:
        ended = [cluster.wait(f"worker-{rank}", timeout_s=60) for rank in range(WORKERS)]
    for one in ended:
        assert one.returncode == TrainingError.exit_code
        assert "one framework, found 2 with torch, 1 with mxnet; start them with one script" in one.output
