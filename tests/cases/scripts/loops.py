"""Loops over epochs and batches as people write them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader

from tests.cases.harness import data, net, weights


def _start(attach: Any) -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, attach(model, optimizer, DataLoader(data(), 32))


def _train(run: Any, model: Any, optimizer: Any, batches: Iterable[Any]) -> int:
    count = 0
    for _, x, y in batches:
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        optimizer.step()
        count += 1
    return count


def cell_twice(attach: Any) -> Any:
    model, optimizer, run = _start(attach)
    found = [(epoch, _train(run, model, optimizer, run.batches())) for _ in range(2) for epoch in run.epochs(2)]
    run.close()
    return found, weights(model)


def break_in_a_pass(attach: Any) -> Any:
    model, optimizer, run = _start(attach)
    for epoch in run.epochs(3):
        for number, batch in enumerate(run.batches(), start=1):
            _train(run, model, optimizer, [batch])
            if epoch == 0 and number == 3:
                break
    run.close()
    return weights(model)


def shorter_partner(attach: Any) -> Any:
    """The partner of zip() ends first, when run.batches() has handed out one batch more."""
    model, optimizer, run = _start(attach)
    for _ in run.epochs(2):
        _train(run, model, optimizer, (batch for batch, _ in zip(run.batches(), range(4), strict=False)))
    run.close()
    return weights(model)
