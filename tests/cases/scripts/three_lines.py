"""Loops over `run.loader`, where `loss.backward()` is summed as under DistributedDataParallel."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss

from tests.cases.harness import data, net, weights


def accumulated(attach: Any) -> Any:
    """A step after every third batch; the first two stay on their worker."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.5)
    run = attach(model, optimizer, data())
    for _ in range(2):
        for number, (_, x, y) in enumerate(run.loader):
            if (number + 1) % 3:
                with run.no_sync():
                    (mse_loss(model(x), y) / 3).backward()
            else:
                (mse_loss(model(x), y) / 3).backward()
                optimizer.step()
                optimizer.zero_grad()
    run.close()
    return weights(model)


def summed_each_time(attach: Any) -> Any:
    """Two losses of a batch, without zero_grad between: both gradients are global, and they add up."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    run = attach(model, optimizer, data())
    for _, x, y in run.loader:
        optimizer.zero_grad()
        hidden = model[0](x)
        hidden.square().mean().backward(retain_graph=True)
        mse_loss(model[2](model[1](hidden)), y).backward()
        optimizer.step()
    run.close()
    return weights(model)


def with_attacks(attach: Any) -> Any:
    """Inputs get gradients of their own, and a helper that is not attached trains on this worker alone."""
    model, helper = net(), nn.Linear(6, 1)
    nn.init.zeros_(helper.weight)
    nn.init.zeros_(helper.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, data())
    for _, x, y in run.loader:
        helper.zero_grad()
        helper(x).mean().backward()  # also where the share of this worker is empty
        attacked = x.clone().requires_grad_()
        mse_loss(model(attacked), y).backward(inputs=[attacked])
        assert attacked.grad is not None and helper.weight.grad is not None
        optimizer.zero_grad()
        mse_loss(model(x + 0.1 * attacked.grad.sign()), y).backward()
        optimizer.step()
    run.close()
    return weights(model)


def both_forms(attach: Any) -> Any:
    """A loss over units is given to `run.backward`, and loops of both kinds follow each other."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, data())
    for number, x, y in run.loader:
        optimizer.zero_grad()
        units = (number % 3 + 1.0)[:, None]
        run.backward((units * (model(x) - y) ** 2).sum() / units.sum(), weight=units.sum())
        optimizer.step()
    for _, x, y in run.batches(epochs=2):
        optimizer.zero_grad()
        a, b = mse_loss(model(x), y), model(x).square().mean()
        a.backward()
        run.backward(b)
        optimizer.step()
    for _, x, y in run.loader:
        optimizer.zero_grad()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        mse_loss(model(x), y).backward()
        optimizer.step()
    run.close()
    return weights(model)


def checkpointed(attach: Any) -> Any:
    """The graph shows no parameter: all of it is computed anew."""
    from torch.utils.checkpoint import checkpoint

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, data())
    for _, x, y in run.loader:
        optimizer.zero_grad()
        mse_loss(checkpoint(model, x.requires_grad_(), use_reentrant=True), y).backward()
        optimizer.step()
    run.close()
    return weights(model)
