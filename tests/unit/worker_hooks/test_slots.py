"""Slots without a worker: nothing changes by them, and what a lost worker was to do comes again."""

from __future__ import annotations

from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dynamix_ps.errors import TrainingError
from dynamix_ps.messages import Plan
from tests.unit.worker_hooks.local_run import SAMPLES, make_data, make_run, open_run, settings_for, train, weights
from worker_hooks.loading.batches import StreamWorker
from worker_hooks.loading.common_stream import CommonStream
from worker_hooks.membership.member_process import MemberProcess
from worker_hooks.run import Run
from worker_hooks.sampling.sampler import Cursor, Step
from worker_hooks.saved.checkpoint import Position
from worker_hooks.session import Session
from worker_hooks.workers import Workers

runs = count()


class Numbered(torch.utils.data.Dataset[Any]):
    """Every sample comes with its number."""

    def __init__(self) -> None:
        self.tensors = make_data().tensors

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> Any:
        return *(tensor[number] for tensor in self.tensors), number


def run_in(
    slot: int,
    sizes: tuple[int, ...],
    folder: Path | None = None,
    norm: bool = False,
    elastic: Any = None,
    **changes: Any,
) -> Run:
    """A training of one worker. The other slots are empty, whatever `sizes` say. `elastic`: of its data plane."""
    torch.manual_seed(0)
    layers = [nn.Linear(4, 6), *([nn.BatchNorm1d(6)] if norm else []), nn.Linear(6, 2)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if folder is not None:
        for name in ("workers", "checkpoints"):
            (folder / name).mkdir(exist_ok=True)
    own = {"sizes": sizes, "lr_rule": "linear", "run_id": str(next(runs))}  # no training before it has a say
    session = Session(settings_for(folder, **own, **changes), "torch")
    session.workers = Workers(len(sizes), range(slot, slot + 1), (slot,))
    session.comm.elastic = elastic
    if elastic is not None:
        session.member = MemberProcess(session.settings, session.comm, elastic)
    return open_run([model], [optimizer], Numbered(), session)


def train_numbered(run: Run, **limits: int) -> list[list[int]]:
    """The sample numbers of every batch, as they were in sums."""
    seen = []
    for inputs, targets, numbers in run.batches(**limits):
        run.optimizers[0].zero_grad()
        run.backward(nn.functional.cross_entropy(run.models[0](inputs), targets))
        run.optimizers[0].step()
        seen.append(numbers[: run.training.now.batch.samples].tolist())
    return seen


def replayed(batches: list[list[int]], tuned_batch: int) -> torch.Tensor:
    """The weights of plain torch after the same samples, with a rate that follows their number."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs, targets = make_data().tensors
    for numbers in batches:
        optimizer.param_groups[0]["lr"] = 0.1 * len(numbers) / tuned_batch
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[numbers]), targets[numbers]).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize(("slot", "slots"), [(0, 3), (2, 4)])
def test_slots_that_are_empty_from_the_start_change_no_bit(slot, slots, tmp_path, monkeypatch):
    def finished(run: Run, plan: Plan) -> tuple[list[list[int]], torch.Tensor]:
        monkeypatch.setattr(run.training.session, "newest_plan", lambda: plan if run.iteration > 5 else None)
        found = train_numbered(run, epochs=3), weights(run)
        assert run.training.now.sum.view.saves, "it leads"
        run.close()
        return found

    def only(size: int) -> tuple[int, ...]:
        return tuple(size if one == slot else 0 for one in range(slots))

    common = {"mode": "adapt", "window": 4, "checkpoint_every": 5, "norm": True}
    (tmp_path / "plain").mkdir()
    (tmp_path / "slots").mkdir()
    batches, expected = finished(run_in(0, (8,), tmp_path / "plain", **common), Plan(1, (5,)))
    seen, found = finished(run_in(slot, only(8), tmp_path / "slots", **common), Plan(1, only(5)))
    assert seen == batches
    assert {len(numbers) for numbers in seen} >= {8, 5}, "the vote of those that are there is unanimous"
    assert torch.equal(found, expected)
    assert (tmp_path / "slots" / "checkpoints" / "last.pt").exists()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_what_a_lost_worker_was_to_do_comes_again_and_the_global_batch_stays(prefetch):
    run = run_in(0, (5, 3), prefetch=prefetch)
    batches = train_numbered(run, epochs=2)
    assert run.planned_sizes == (8, 0)
    sizes = [len(numbers) for numbers in batches]
    assert sizes[: 1 + prefetch] == [5] * (1 + prefetch), "sizes that were fixed before it was lost"
    assert sizes[1 + prefetch : 4 + prefetch] == [8, 8, 8]
    order = [number for numbers in batches for number in numbers]
    for epoch in range(2):
        assert sorted(order[epoch * SAMPLES :][:SAMPLES]) == list(range(SAMPLES))
    found = weights(run)
    run.close()
    assert torch.allclose(found, replayed(batches, 8), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("saved_at", [1, 2, 3, 4, 9])
def test_a_checkpoint_knows_what_is_owed(prefetch, saved_at, tmp_path):
    run = run_in(1, (3, 5), prefetch=prefetch)
    begun = train_numbered(run, iterations=saved_at)
    run.save(tmp_path / "x.pt")
    run.close()
    resumed = run_in(0, (8,), prefetch=prefetch, resume=tmp_path / "x.pt")
    assert resumed.planned_sizes == (8,)
    gone_on = train_numbered(resumed, epochs=2)
    seen = Counter(number for numbers in begun + gone_on for number in numbers)
    assert seen == dict.fromkeys(range(SAMPLES), 2)


def test_a_worker_that_is_lost_at_the_end_of_a_pass_is_made_up_for_in_the_same_loop(monkeypatch):
    run = run_in(0, (50, 0), prefetch=1)
    step = Step(Cursor(), (30, 20), Cursor(1))
    monkeypatch.setattr(
        run.training.data.sampler,
        "plan_step",
        lambda cursor, sizes: step if cursor == Cursor() else plan(cursor, sizes),
    )
    plan = type(run.training.data.sampler).plan_step.__get__(run.training.data.sampler)
    batches = train_numbered(run, epochs=1)
    assert [len(numbers) for numbers in batches] == [30, 20]
    assert sorted(number for numbers in batches for number in numbers) == list(range(SAMPLES))
    assert (run.epoch, run.training.progress.cursor) == (1, Cursor(1))


def test_running_statistics_are_means_over_the_workers_that_are_there():
    run, plain = run_in(0, (5, 3), norm=True), run_in(0, (5,), norm=True)
    batches = train_numbered(run, iterations=1)
    assert train_numbered(plain, iterations=1) == batches
    for mine, other in zip(run.models[0].buffers(), plain.models[0].buffers(), strict=True):
        assert torch.allclose(mine, other)


def test_the_loss_is_a_mean_over_the_samples_that_are_in_the_sum():
    run, plain = run_in(0, (5, 3)), run_in(0, (5,))
    for one in (run, plain):
        train_numbered(one, iterations=1)
    assert run.training.now.sum.view.loss == pytest.approx(plain.training.now.sum.view.loss)
    assert run.training.now.sum.batch_size == 5


def test_samples_of_a_stream_that_are_lost_are_refused():
    worker = StreamWorker(0, 2, 1, None, None)
    stream = CommonStream(lambda epoch: iter(range(9)), list, Position(0, Cursor(), Plan(0, (4, 4)), 0, 0), worker)
    with pytest.raises(TrainingError, match=r"worker 1 was lost with samples of a stream, .* resume from a checkpoint"):
        stream.missed(Step(Cursor(), (4, 4), Cursor(0, 8)), [1], 1)
    stream.close()


def test_a_run_without_empty_slots_is_led_by_worker_0():
    run = make_run()
    train(run, iterations=1)
    assert run.training.sums.leads and run.training.now.sum.view.members == (1,)


@pytest.mark.parametrize("units", [None, 7.0])
def test_gradients_of_a_short_iteration_are_means_over_what_is_in_the_sum(units):
    found = []
    for sizes in ((5, 3), (5,)):
        run = run_in(0, sizes)
        batches = run.batches(iterations=1)
        inputs, targets, _ = next(batches)
        run.backward(nn.functional.cross_entropy(run.models[0](inputs), targets), weight=units)
        found.append(torch.cat([p.grad.flatten() for p in run.models[0].parameters()]))
        run.close()
    assert torch.allclose(*found, rtol=1e-6)
