"""Shards and streams on real workers: the weights of one process on the same samples, errors that all workers raise."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset

from tests.cases.harness import flat, weights
from tests.forked import ForkServer

LENGTHS = (40, 3, 25, 0, 31, 12, 50, 1, 22)
SIZES = (12, 5, 3)


def sample(number: int) -> tuple[int, torch.Tensor, torch.Tensor]:
    x = torch.sin(torch.arange(6.0, dtype=torch.float64) * (number + 1))
    return number, x, x.sum().square()


def samples_of(shard: int) -> Iterator[Any]:
    begin = sum(LENGTHS[:shard])
    return map(sample, range(begin, begin + LENGTHS[shard]))


class Stream(IterableDataset[Any]):
    """The same on every worker, unless `spoilt` names one."""

    def __init__(self, spoilt: str = "") -> None:
        self._spoilt = spoilt == os.environ.get("DMLC_WORKER_ID")

    def __iter__(self) -> Iterator[Any]:
        numbers = list(range(160))
        random.Random(int(self._spoilt)).shuffle(numbers)
        return map(sample, numbers)


def small() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (model(x).squeeze(1) - y).square().mean()


def train(what: str) -> dict[str, Any]:
    """Two passes; returns the weights, the numbers of this worker's samples in every iteration, and their mean as an
    evaluation over shards finds it."""
    import dynamix_ps.torch as dynamix

    model, optimizer = small()
    data = dynamix.shards(range(len(LENGTHS)), samples_of) if what == "shards" else Stream(what)
    run = dynamix.attach(model, optimizer, data)
    seen = []
    for numbers, x, y in run.batches(epochs=2):
        optimizer.zero_grad()
        run.backward(loss_of(model, x, y))
        optimizer.step()
        seen.append(numbers.tolist()[: run.training.now.batch.samples])
    mean = run.evaluate(data, lambda numbers, x, y: numbers.sum()) if what == "shards" else None
    run.close()
    return {"weights": weights(model), "seen": seen, "mean": mean}


def in_one_process(batches: list[list[int]]) -> list[float]:
    """Weights after training on these samples, iteration by iteration."""
    model, optimizer = small()
    for numbers in batches:
        _, x, y = zip(*map(sample, numbers), strict=True)
        optimizer.zero_grad()
        loss_of(model, torch.stack(x), torch.stack(y)).backward()
        optimizer.step()
    return list(flat(weights(model)))


@pytest.mark.parametrize("what", ["shards", ""])
def test_weights_are_those_of_one_process_on_the_same_batches(what: str, server: ForkServer, tmp_path: Path) -> None:
    workers = server.run("tests.cases.test_streams:train", what, tmp_path, SIZES, lr_rule="none")
    assert [worker.code for worker in workers] == [0, 0, 0], workers
    batches = [[*chain(*parts)] for parts in zip(*(worker.result["seen"] for worker in workers), strict=True)]
    expected = in_one_process(batches)
    for worker in workers:
        assert list(flat(worker.result["weights"])) == pytest.approx(expected, rel=1e-6, abs=1e-9)
        assert worker.result["mean"] == ((sum(LENGTHS) - 1) / 2 if what == "shards" else None)
    if what == "":
        order = list(range(160))
        random.Random(0).shuffle(order)
        assert [*chain(*batches)] == 2 * order, "the order of the stream, worker 0 first"


def test_a_stream_that_differs_on_one_worker_is_refused_by_all(server: ForkServer, tmp_path: Path) -> None:
    workers = server.run("tests.cases.test_streams:train", "1", tmp_path, SIZES, lr_rule="none")
    assert all(worker.code for worker in workers)
    assert all("stream of worker 1 gives other samples than that of worker 0" in worker.output for worker in workers)
