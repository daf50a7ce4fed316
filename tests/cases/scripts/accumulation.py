"""Gradients of several backward passes in one step."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss

from tests.cases.harness import data, net, weights


def in_parts_of_the_batch(attach: Any) -> Any:
    """Every batch in four parts, the last one through run.backward()."""
    model, true = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, data())
    for _, x, y in run.batches(iterations=6):
        optimizer.zero_grad()
        true.append(mse_loss(model(x), y).item() * len(x))
        parts = list(zip(x.chunk(4), y.chunk(4), strict=True))
        for number, (a, b) in enumerate(parts):
            loss = mse_loss(model(a), b) / 4
            if number < 3:
                loss.backward()
            else:
                run.backward(loss)
        optimizer.step()
    run.close()
    return weights(model)


def over_batches(attach: Any) -> Any:
    """As most people write it: a step after every third batch."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.5)
    run = attach(model, optimizer, data())
    for number, (_, x, y) in enumerate(run.batches(iterations=9)):
        loss = mse_loss(model(x), y) / 3
        if (number + 1) % 3:
            loss.backward()
        else:
            run.backward(loss)
            nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
            optimizer.zero_grad()
    run.close()
    return weights(model)


def over_batches_run_backward(attach: Any) -> Any:
    """run.backward() for every batch, a step after every second: gradients of both are in it."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    run = attach(model, optimizer, data())
    for number, (_, x, y) in enumerate(run.batches(iterations=8)):
        run.backward(mse_loss(model(x), y) / 2)
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    run.close()
    return weights(model)


def two_losses(attach: Any) -> Any:
    """Two losses of one batch, added up by autograd."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, data())
    for _, x, y in run.batches(iterations=6):
        optimizer.zero_grad()
        (0.1 * model(x).square().mean()).backward()
        run.backward(mse_loss(model(x), y))
        optimizer.step()
    run.close()
    return weights(model)


def batch_left_out(attach: Any) -> Any:
    """The script skips a batch, alike on all workers."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, data())
    for number, (_, x, y) in enumerate(run.batches(iterations=8)):
        if number == 3:
            continue
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        if number == 5:
            continue  # no step for this one
        optimizer.step()
    run.close()
    return weights(model)


def across_loops(attach: Any) -> Any:
    """A step after every fourth batch, whichever loop it is in; at the ends of loops batches are smaller."""
    model, seen = net(), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    run = attach(model, optimizer, data(200))
    for _ in range(2):
        for _, x, y in run.batches(epochs=1):
            seen += 1
            loss = mse_loss(model(x), y) / 4
            if seen % 4:
                loss.backward()
            else:
                run.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
    run.close()
    return seen, weights(model)


def dropped_by_zero_grad(attach: Any) -> Any:
    """A backward after the step, to look at gradients; the next iteration begins with zero_grad()."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    run = attach(model, optimizer, data(200))
    for _, x, y in run.batches(epochs=2):
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
        model(x).square().mean().backward()
    run.close()
    return weights(model)


def zeroed_in_place(attach: Any) -> Any:
    """zero_grad(set_to_none=False), as before torch 2: backward then adds to the tensors that hold the last sum."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    run = attach(model, optimizer, data())
    for _, x, y in run.batches(epochs=1):
        optimizer.zero_grad(set_to_none=False)
        for part, (a, b) in enumerate(zip(x.chunk(2), y.chunk(2), strict=True)):
            loss = mse_loss(model(a), b) / 2
            if part:
                run.backward(loss)
            else:
                loss.backward()
        optimizer.step()
    run.close()
    return weights(model)


def thawed_while_it_accumulates(attach: Any) -> Any:
    """A layer is thawed after the batch was handed out: the gradients of that batch are in the step all the same."""
    model = net()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    run = attach(model, optimizer, data(200))
    for number, (_, x, y) in enumerate(run.batches(epochs=2)):
        loss = mse_loss(model(x), y) / 3
        if number == 3:
            model[0].requires_grad_(True)
            loss = mse_loss(model(x), y) / 3
        if (number + 1) % 3:
            loss.backward()
        else:
            run.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    run.close()
    return weights(model)
