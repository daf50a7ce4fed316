"""Iterations that end early: when they may, and what a sum with fewer samples than planned means."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

from dynamix_ps.config.schema import PolicySection
from dynamix_ps.errors import TrainingError
from tests.unit.worker_hooks.local_run import open_run, settings_for
from worker_hooks.early_end import EarlyEnd
from worker_hooks.iteration.in_flight import LeftRows
from worker_hooks.run import Run
from worker_hooks.sampling.sampler import Range
from worker_hooks.session import Session

ROWS, BATCH = 80, 8


def attached(deadline: bool = True) -> Run:
    """A worker alone, which has a deadline although it waits for nobody."""
    model = nn.Linear(1, 1)
    data = TensorDataset(torch.arange(float(ROWS))[:, None], torch.zeros(ROWS, 1))
    session = Session(settings_for(sizes=(BATCH,)), "torch")
    run = open_run([model], [torch.optim.SGD(model.parameters(), lr=1e-6)], data, session)
    if deadline:
        run.training.session.settings = _Changed(session.settings)
        run.training.backward.early_end = EarlyEnd(run.training)
    return run


class _Changed:
    """Settings with a deadline."""

    def __init__(self, settings: Any) -> None:
        self._settings = settings
        self.config = settings.config.model_copy(update={"policy": PolicySection(deadline="auto")})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._settings, name)


def leave(run: Run, monkeypatch: pytest.MonkeyPatch, samples: int) -> None:
    """The coming sum is without the first `samples` of its batch."""
    receive = run.training.sums.receive

    def received(*args: Any) -> Any:
        view = receive(*args)
        run.training.now.left = LeftRows(samples)
        done = run.training.now.batch.samples - samples
        return view._replace(worker_samples=(done,), samples=done)

    monkeypatch.setattr(run.training.sums, "receive", received)


def backward(run: Run, batch: Any) -> None:
    run.backward(mse_loss(run.models[0](batch[0]), batch[1]))


def test_fewer_samples_than_planned_are_an_error_without_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    run = attached(deadline=False)
    leave(run, monkeypatch, 3)
    with pytest.raises(TrainingError, match=r"have processed \(5,\) samples in iteration 0, the plan has \(8,\)"):
        for batch in run.batches(epochs=1):
            backward(run, batch)


def test_what_a_sum_is_without_comes_again_in_the_same_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    run, sizes = attached(), []
    leave(run, monkeypatch, 3)
    for batch in run.batches(epochs=1):
        backward(run, batch)
        if not sizes:
            assert run.state_dict()["position"]["cursor"]["owed"] == [], "the batch is not done yet"
            monkeypatch.undo()
        run.optimizers[0].step()
        sizes.append(run.training.now.spent[0])
        if len(sizes) == 1:
            assert run.training.data.stream.resumable(run.training.progress.cursor, 1)[0].owed == (Range(0, 0, 3),)
    assert sizes[0] == BATCH - 3
    assert sum(sizes) == ROWS
    assert run.training.session.account.samples == ROWS
    assert (run.training.session.account.early_iterations, run.training.session.account.left_samples) == (1, 3)


def test_a_mean_over_fewer_samples_is_the_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient that has arrived is that of 5 of 8 rows, over 8."""
    run = attached()
    leave(run, monkeypatch, 3)
    batches = iter(run.batches(epochs=1))
    batch = next(batches)
    backward(run, batch)
    gradient = run.models[0].weight.grad
    assert gradient is not None
    mine = gradient.clone()
    run.models[0].zero_grad()
    mse_loss(run.models[0](batch[0]), batch[1]).backward()
    torch.testing.assert_close(mine, run.models[0].weight.grad * 8 / 5)


def test_a_second_sum_of_a_batch_that_has_ended_early_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    run = attached()
    leave(run, monkeypatch, 3)
    batches = iter(run.batches(epochs=1))
    batch = next(batches)
    backward(run, batch)
    with pytest.raises(TrainingError, match="samples of this batch come again"):
        backward(run, batch)


@pytest.mark.parametrize(("position", "may"), [(0, True), (ROWS - 3 * BATCH, True), (ROWS - 2 * BATCH, False)])
def test_the_last_iterations_of_a_pass_run_to_their_end(position: int, may: bool) -> None:
    run = attached()
    early_end = run.training.backward.early_end
    assert early_end is not None
    for batch in run.batches(epochs=1):
        if run.training.progress.cursor.position == position:
            assert early_end._may_end() == may
            return
        backward(run, batch)
        run.optimizers[0].step()


def test_a_worker_alone_has_no_deadline() -> None:
    assert EarlyEnd.not_possible(attached(deadline=False).training) == "there is none: one worker waits for nobody"
