"""DDP with sizes by hand, in real processes over gloo, beside one process on the samples of all workers."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from benchmarks.workloads import objective
from benchmarks.workloads.data_set import Samples
from benchmarks.workloads.torch_samples import SampleSet
from benchmarks.workloads.train_ddp import DdpTraining
from worker_hooks.sampling.sampler import Cursor, GlobalSampler

pytestmark = pytest.mark.timeout(60)

SAMPLES, FEATURES, CLASSES, SEED, EPOCHS = 61, 5, 3, 4, 3
PATIENCE_S = 40.0


def samples(count: int, seed: int) -> SampleSet:
    rng = np.random.default_rng(seed)
    return SampleSet(Samples(rng.normal(size=(count, FEATURES)), rng.integers(0, CLASSES, count), "made up", None))


def fresh() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(SEED)
    model = torch.nn.Linear(FEATURES, CLASSES, dtype=torch.float64)
    return model, torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)


def score(model: torch.nn.Module) -> Any:
    return lambda inputs, targets: objective.scores(model(inputs), targets)


def work(rank: int, sizes: tuple[int, ...], folder: Path, spoil: bool) -> None:
    """One worker: trains, evaluates, and leaves weights and values. `spoil`: a weight becomes infinite before."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=len(sizes))
    model, optimizer = fresh()
    run = DdpTraining(model, samples(SAMPLES, 1), sizes, SEED, EPOCHS)
    progress = []
    for inputs, targets in run.batches(EPOCHS):
        progress.append(run.progress)
        optimizer.zero_grad()
        run.backward(objective.mean_loss(run.parallel(inputs), targets))
        optimizer.step()
    if spoil:
        next(model.parameters()).data[0, 0] = torch.inf
    values = run.evaluate(samples(20, 2), score(model))
    torch.save({"weights": model.state_dict(), "values": values, "progress": progress}, folder / f"{rank}.pt")
    run.end()


def trained(sizes: tuple[int, ...], folder: Path, spoil: bool = False) -> list[dict[str, Any]]:
    """What each worker has left; none where the training ended before."""
    fork = multiprocessing.get_context("fork")
    workers = [fork.Process(target=work, args=(rank, sizes, folder, spoil)) for rank in range(len(sizes))]
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(PATIENCE_S)
        assert [worker.exitcode for worker in workers] == [0] * len(sizes)
    finally:
        for worker in workers:
            worker.kill()
    return [torch.load(file) for file in sorted(folder.glob("*.pt"))]


def alone(sizes: tuple[int, ...]) -> tuple[Mapping[str, torch.Tensor], Mapping[str, float], list[float]]:
    """One process, which takes the samples of all workers at once."""
    model, optimizer = fresh()
    inputs, targets = samples(SAMPLES, 1).tensors
    sampler, cursor, progress, done = GlobalSampler(SAMPLES, SEED), Cursor(), [], 0
    while cursor.epoch < EPOCHS:
        step = sampler.plan_step(cursor, sizes)
        rows = torch.from_numpy(sampler.indices(step, 0, len(sizes)))
        progress.append(done / (EPOCHS * SAMPLES))
        optimizer.zero_grad()
        objective.mean_loss(model(inputs[rows]), targets[rows]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        cursor, done = step.next, done + len(rows)
    with torch.no_grad():
        values = {name: float(value) / 20 for name, value in score(model)(*samples(20, 2).tensors).items()}
    return model.state_dict(), values, progress


@pytest.mark.parametrize("sizes", [(8, 8), (14, 2), (29, 1)])
def test_the_gradient_is_that_of_one_process_on_all_samples(sizes: tuple[int, ...], tmp_path: Path) -> None:
    """With (29, 1) some iterations at the end of an epoch have no sample for the second worker."""
    workers = trained(sizes, tmp_path)
    weights, values, progress = alone(sizes)
    assert len(workers) == len(sizes)
    for one in workers:
        torch.testing.assert_close(one["weights"], weights, rtol=1e-12, atol=1e-12)
        assert one["values"] == pytest.approx(values, rel=1e-9)
        assert one["progress"] == pytest.approx(progress)


def test_a_loss_that_is_not_finite_ends_all_workers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert trained((8, 8), tmp_path, spoil=True) == []
    lines = capfd.readouterr().out.splitlines()
    assert '"kind": "diverged"' in lines[-1] and "the test loss is not finite in iteration" in lines[-1]


def test_sizes_are_one_per_worker(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match="sizes: got 2, expected one for each of the 1 workers"):
            DdpTraining(fresh()[0], samples(SAMPLES, 1), (8, 8), SEED, EPOCHS)
    finally:
        dist.destroy_process_group()
