"""Errors of a script that come from what the hook does differently."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from dynamix_ps.errors import TrainingError
from tests.unit.worker_hooks.local_run import make_run, open_run, settings_for
from worker_hooks.loading.script_errors import of_sizes
from worker_hooks.session import Session


def test_a_state_of_the_sizes_before_is_named() -> None:
    run, state = make_run(), None
    lstm = nn.LSTM(4, 2, batch_first=True)
    with pytest.raises(RuntimeError) as raised:
        for inputs, targets in run.batches(epochs=1):
            _, state = lstm(inputs[:, None], state)
            run.backward(nn.functional.cross_entropy(run.models[0](inputs), targets))
    told = run.training.explained(raised.value)
    assert isinstance(told, TrainingError)
    assert "batch has 5 samples and the one before had 8" in str(told)


@pytest.mark.parametrize(
    ("error", "samples", "before"),
    [
        (RuntimeError("Expected size 8, got 5"), 8, 8),
        (RuntimeError("Expected size 8, got 55"), 5, 8),
        (RuntimeError("Expected size 8, got 5"), 5, 0),
        (KeyError("8 and 5"), 5, 8),
    ],
)
def test_other_errors_stay_as_they_are(error: Exception, samples: int, before: int) -> None:
    assert of_sizes(error, samples, before) is None


def connection() -> sqlite3.Connection:
    made = sqlite3.connect(":memory:")
    made.execute("create table t (a real)")
    made.executemany("insert into t values (?)", [(row / 64,) for row in range(64)])
    return made


class Rows(Dataset[Any]):
    def __init__(self) -> None:
        self.rows = connection()

    def __len__(self) -> int:
        return 64

    def __getitem__(self, number: int) -> Any:
        ((value,),) = self.rows.execute("select a from t limit 1 offset ?", (int(number),))
        return torch.tensor([value]), torch.tensor([value])


class Stream(IterableDataset[Any]):
    def __init__(self) -> None:
        self.rows = connection()

    def __iter__(self) -> Iterator[Any]:
        for (value,) in self.rows.execute("select a from t"):
            yield torch.tensor([value]), torch.tensor([value])


def train(data: Any, **settings: Any) -> int:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = open_run([model], [optimizer], data, Session(settings_for(None, **settings), "torch"))
    try:
        for inputs, targets in run.batches(epochs=1):
            run.backward(nn.functional.mse_loss(model(inputs), targets))
            optimizer.step()
    finally:
        run.close()
    return run.iteration


def test_a_connection_that_belongs_to_a_thread_is_named_and_one_without_reading_ahead_is_read() -> None:
    with pytest.raises(TrainingError, match=r"data set is read ahead, in a thread .*__getitem__, or say prefetch: 0"):
        train(Rows(), prefetch=2)
    assert train(Rows(), prefetch=0) == 8
    with pytest.raises(TrainingError, match=r"the stream is read ahead, .*; open it where it is read, in __iter__"):
        train(DataLoader(Stream(), batch_size=8))
