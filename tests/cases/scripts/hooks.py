"""Hooks of the script on gradients of parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss

from tests.cases.harness import data, net, weights


def clamped_before_attach(attach: Any) -> Any:
    return _clamped(attach, before=True)


def clamped_after_attach(attach: Any) -> Any:
    return _clamped(attach, before=False)


def _clamped(attach: Any, before: bool) -> Any:
    """A limit on every value is another one for the gradient of a worker and for the global one."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)

    def register() -> None:
        for p in model.parameters():
            p.register_hook(lambda gradient: torch.clamp(gradient, -0.02, 0.02))

    if before:
        register()
    run = attach(model, optimizer, data())
    if not before:
        register()
    for _, x, y in run.batches(iterations=8):
        optimizer.zero_grad()
        run.backward(10 * mse_loss(model(x), y))
        optimizer.step()
    run.close()
    return weights(model)


def changed_in_place_and_removed(attach: Any) -> Any:
    """For the first four iterations."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    run = attach(model, optimizer, data())
    handle = model[0].weight.register_hook(lambda gradient: gradient.clamp_(-0.01, 0.01))
    for number, (_, x, y) in enumerate(run.batches(iterations=8)):
        if number == 4:
            handle.remove()
        optimizer.zero_grad(set_to_none=False)
        run.backward(10 * mse_loss(model(x), y))
        optimizer.step()
    run.close()
    return weights(model)


def watched(attach: Any) -> Any:
    """Loggers read gradients, in both kinds of hooks; also while they are added up over two batches."""
    model, seen = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model[0].weight.register_hook(lambda gradient: seen.append(float(gradient.norm())))
    run = attach(model, optimizer, data())
    model[2].weight.register_post_accumulate_grad_hook(lambda p: seen.append(float(p.grad.norm())))
    for _, x, y in run.batches(epochs=1):
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        optimizer.step()
    run.close()
    return seen, weights(model)


def watched_while_gradients_add_up(attach: Any) -> Any:
    model, calls = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model[2].weight.register_post_accumulate_grad_hook(lambda p: calls.append(p.grad.shape))
    run = attach(model, optimizer, data())
    for number, (_, x, y) in enumerate(run.batches(iterations=8)):
        loss = mse_loss(model(x), y) / 2
        if number % 2 == 0:
            loss.backward()
            continue
        run.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    run.close()
    return len(calls), weights(model)


def optimizer_in_backward(attach: Any) -> Any:
    """Every parameter has an optimizer of its own, which steps as soon as its gradient is there."""
    model = net()
    optimizers = {p: torch.optim.Adam([p], lr=0.05) for p in model.parameters()}

    def step(parameter: nn.Parameter) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    run = attach(model, list(optimizers.values()), data())
    for _, x, y in run.batches(epochs=2):
        run.backward(mse_loss(model(x), y))
    run.close()
    return weights(model)


def on_a_layer_of_some_samples(attach: Any) -> Any:
    """Backward reaches the layer on one of the workers; the hook is called on both."""
    model = nn.ModuleDict({"used": nn.Linear(6, 1), "rare": nn.Linear(6, 1)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model["rare"].weight.register_hook(lambda gradient: gradient.sign())
    run = attach(model, optimizer, data())
    for rows, x, y in run.batches(iterations=12):
        optimizer.zero_grad()
        rare = rows % 40 == 0
        found = model["used"](x)
        if rare.any():
            found = found + rare[:, None] * model["rare"](x)
        run.backward(mse_loss(found, y))
        optimizer.step()
    run.close()
    return weights(model)


def accumulated_on_a_layer_of_some_samples(attach: Any) -> Any:
    """The gradient of the layer is that of several batches, and its hook halves what is there at each of them.

    A batch in which no worker uses the layer leaves the gradient as it is.
    """
    model = nn.ModuleDict({"used": nn.Linear(6, 1), "rare": nn.Linear(6, 1)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def halve(parameter: nn.Parameter) -> None:
        parameter.grad.mul_(0.5)

    model["rare"].weight.register_post_accumulate_grad_hook(halve)
    run = attach(model, optimizer, data())
    for number, (rows, x, y) in enumerate(run.batches(iterations=12)):
        rare = rows % 40 == 0 if number % 4 < 3 else torch.zeros_like(rows, dtype=torch.bool)
        found = model["used"](x)
        if rare.any():
            found = found + rare[:, None] * model["rare"](x)
        run.backward(mse_loss(found, y))
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    run.close()
    return weights(model)


def step_by_hand(attach: Any) -> Any:
    """A hook changes its parameter in place, as it may in backward, where no graph is made."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def step(parameter: nn.Parameter) -> None:
        parameter.sub_(0.1 * parameter.grad)
        parameter.grad = None

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    run = attach(model, optimizer, data())
    for _, x, y in run.batches(epochs=1):
        run.backward(mse_loss(model(x), y))
    run.close()
    return weights(model)
