"""Loops over epochs and batches as people write them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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


def one_batch_ahead(attach: Any) -> Any:
    """As where batches are copied to a device while the one before is trained."""
    model, optimizer, run = _start(attach)
    for _ in run.epochs(2):
        batches = iter(run.batches())
        following = next(batches)
        while following is not None:
            batch, following = following, next(batches, None)
            _train(run, model, optimizer, [batch])
    run.close()
    return weights(model)


def next_batch_before_backward(attach: Any) -> Any:
    """As in loops that load the next batch while the forward pass is computed."""
    model, optimizer, run = _start(attach)
    for _ in run.epochs(2):
        batches = iter(run.batches())
        batch = next(batches)
        while batch is not None:
            loss = mse_loss(model(batch[1]), batch[2])
            batch = next(batches, None)
            optimizer.zero_grad()
            run.backward(loss)
            optimizer.step()
    run.close()
    return weights(model)


def _copied(batches: Iterable[Any]) -> Iterator[Any]:
    before = None
    for batch in batches:
        copied = [column.clone() for column in batch]
        if before is not None:
            yield before
        before = copied
    if before is not None:
        yield before


def copies_one_ahead(attach: Any) -> Any:
    """Nothing of the loss has the memory of the batch."""
    model, optimizer, run = _start(attach)
    for _ in run.epochs(2):
        _train(run, model, optimizer, _copied(run.batches()))
    run.close()
    return weights(model)


def accumulated_ahead(attach: Any) -> Any:
    """A step for every two batches, of which the next one is taken ahead."""
    model, optimizer, run = _start(attach)
    for _ in run.epochs(2):
        for number, (_, x, y) in enumerate(_copied(run.batches())):
            loss = mse_loss(model(x), y) / 2
            if number % 2 == 0:
                loss.backward()
                continue
            run.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    run.close()
    return weights(model)


def left_out(attach: Any) -> Any:
    """Some batches are not trained, two of them in a row, and the last one of an epoch."""
    model, optimizer, run = _start(attach)
    for _ in run.epochs(2):
        kept = (batch for number, batch in enumerate(run.batches()) if number not in (1, 3, 4, 5))
        _train(run, model, optimizer, kept)
    run.close()
    return weights(model)
