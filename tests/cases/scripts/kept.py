"""Gradients that the script keeps by reference, and tensors of its own in `.grad`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss

from tests.cases.harness import data, net, weights


def two_tasks(attach: Any) -> Any:
    """Two sums of one batch; the gradients of both are kept, and their mean is stepped."""
    model = net(outputs=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    run = attach(model, optimizer, data(outputs=2))
    for _, x, y in run.batches(epochs=2):
        kept = []
        for task in range(2):
            optimizer.zero_grad()
            run.backward(mse_loss(model(x)[:, task], y[:, task]))
            kept.append([p.grad for p in model.parameters()])
        for p, first, second in zip(model.parameters(), *kept, strict=True):
            p.grad = (first + second) / 2
        optimizer.step()
    run.close()
    return weights(model)


def of_the_iteration_before(attach: Any) -> Any:
    return _with_the_one_before(attach, lambda gradient: gradient)


def views_of_the_iteration_before(attach: Any) -> Any:
    return _with_the_one_before(attach, lambda gradient: gradient.view(-1))


def detached_of_the_iteration_before(attach: Any) -> Any:
    return _with_the_one_before(attach, lambda gradient: gradient.detach())


def _with_the_one_before(attach: Any, keep: Any) -> Any:
    """Each step goes along the gradient and half of the one before."""
    model, before = net(), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, data())
    for _, x, y in run.batches(epochs=2):
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        now = [keep(p.grad) for p in model.parameters()]
        if before is not None:
            for p, earlier in zip(model.parameters(), before, strict=True):
                p.grad = p.grad + earlier.view_as(p) / 2
        optimizer.step()
        before = now
    run.close()
    return weights(model)


def flat_buffer(attach: Any) -> Any:
    """Parameters and gradients are views of flat tensors, and the optimizer steps the flat ones."""
    model, flat = flattened(net())
    optimizer = torch.optim.SGD([flat], lr=0.1)
    run = attach(model, optimizer, data())
    for _, x, y in run.batches(epochs=2):
        flat.grad.zero_()
        run.backward(mse_loss(model(x), y))
        optimizer.step()
    run.close()
    return weights(model), flat.detach().tolist()


def flattened(model: nn.Module) -> tuple[nn.Module, Any]:
    """The model and one parameter, of whose value and gradient all of its own are views."""
    flat = nn.Parameter(torch.cat([p.data.flatten() for p in model.parameters()]))
    flat.grad = torch.zeros_like(flat)
    at = 0
    for p in model.parameters():
        p.data, p.grad = (tensor[at : at + p.numel()].view_as(p) for tensor in (flat.data, flat.grad))
        at += p.numel()
    return model, flat


def own_gradient_tensors(attach: Any) -> Any:
    """The script makes the tensors in `.grad`, and reads the gradients there."""
    model, seen = net(), []
    own = [torch.zeros_like(p) for p in model.parameters()]
    for p, tensor in zip(model.parameters(), own, strict=True):
        p.grad = tensor
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, data())
    for _, x, y in run.batches(epochs=2):
        optimizer.zero_grad(set_to_none=False)
        run.backward(mse_loss(model(x), y))
        seen.append([float(tensor.sum()) for tensor in own])
        optimizer.step()
    run.close()
    return seen, weights(model)
