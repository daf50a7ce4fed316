"""Gradients that the script reads or changes: clipping, scaled losses, closures, gradients of no one."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss

from tests.cases.harness import data, net, weights


def usual_loop(attach: Any) -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run = attach(model, optimizer, data())
    for _, x, y in run.batches(epochs=2):
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        optimizer.step()
    run.close()
    return weights(model)


def clip_by_norm(attach: Any) -> Any:
    """By torch's function: what it reads is the global gradient, whose norm it returns."""
    model, norms = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    run = attach(model, optimizer, data())
    for _, x, y in run.batches(iterations=8):
        optimizer.zero_grad()
        run.backward(1000 * mse_loss(model(x), y))
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
        optimizer.step()
    run.close()
    return norms, weights(model)


def clip_by_run(attach: Any) -> Any:
    """By norm, then by value, with the functions of the run."""
    model, norms = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    run = attach(model, optimizer, data())
    for _, x, y in run.batches(iterations=8):
        optimizer.zero_grad()
        run.backward(1000 * mse_loss(model(x), y))
        norms.append(float(run.clip_grad_norm_(0.5)))
        run.clip_grad_value_(0.1)
        optimizer.step()
    run.close()
    return norms, weights(model)


def clip_by_value(attach: Any) -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    run = attach(model, optimizer, data())
    for _, x, y in run.batches(iterations=8):
        optimizer.zero_grad()
        run.backward(1000 * mse_loss(model(x), y))
        nn.utils.clip_grad_value_(model.parameters(), 0.05)
        optimizer.step()
    run.close()
    return weights(model)


def gradient_read_and_scaled(attach: Any) -> Any:
    """The script reads gradients and divides them after run.backward()."""
    model, seen = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    run = attach(model, optimizer, data())
    for _, x, y in run.batches(iterations=5):
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        run.synchronize()
        for parameter in model.parameters():
            assert parameter.grad is not None
            seen.append(parameter.grad.sum().item())
            parameter.grad /= 3
        optimizer.step()
    run.close()
    return seen, weights(model)


def grad_scaler(attach: Any) -> Any:
    """The usual three lines."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    run = attach(model, optimizer, data())
    for _, x, y in run.batches(iterations=10):
        optimizer.zero_grad()
        run.backward(scaler.scale(mse_loss(model(x), y)))
        scaler.step(optimizer)
        scaler.update()
    run.close()
    return scaler.get_scale(), weights(model)


def grad_scaler_clipped(attach: Any) -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    run = attach(model, optimizer, data())
    for _, x, y in run.batches(iterations=6):
        optimizer.zero_grad()
        run.backward(scaler.scale(100 * mse_loss(model(x), y)))
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
    run.close()
    return weights(model)


def grad_scaler_skips(attach: Any) -> Any:
    """One sample of one worker gives an infinite gradient: all skip that step, and halve the scale."""
    model, scales = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    run = attach(model, optimizer, data())
    for _, x, y in run.batches(iterations=6):
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        run.backward(scaler.scale(loss))
        if run.iteration in (2, 3):  # as an overflow would: in the global gradient
            first = next(model.parameters())
            assert first.grad is not None
            first.grad[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    run.close()
    return scales, weights(model)


def overflow_on_one_worker(attach: Any) -> Any:
    """The gradient of the worker that has sample 0 overflows while the scale is large; all skip the step."""
    model, scales = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=1000)
    run = attach(model, optimizer, data())
    for rows, x, y in run.batches(epochs=3):
        optimizer.zero_grad()
        found = model(x)
        factor = torch.where((rows == 0) & (scaler.get_scale() > 2.0**18), torch.inf, 1.0)[:, None]
        found.register_hook(lambda gradient, factor=factor: gradient * factor)
        run.backward(scaler.scale(mse_loss(found, y)))
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    run.close()
    return scales, weights(model)


def closure(attach: Any) -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run = attach(model, optimizer, data())
    for _, x, y in run.batches(iterations=8):

        def computed(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            run.backward(loss)
            return loss

        optimizer.step(computed)
    run.close()
    return weights(model)


def unused_layer(attach: Any) -> Any:
    """A layer that no loss reaches keeps no gradient, so weight decay leaves it alone."""
    model = nn.ModuleDict({"used": nn.Linear(6, 1), "unused": nn.Linear(6, 1)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    run = attach(model, optimizer, data())
    for _, x, y in run.batches(iterations=8):
        optimizer.zero_grad()
        run.backward(mse_loss(model["used"](x), y))
        assert model["unused"].weight.grad is None
        optimizer.step()
    run.close()
    return weights(model)


def layer_of_some_samples(attach: Any) -> Any:
    """A layer that a single sample in the batch reaches: then all workers have a gradient for it, else nobody."""
    model = nn.ModuleDict({"used": nn.Linear(6, 1), "rare": nn.Linear(6, 1)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    run, reached = attach(model, optimizer, data()), []
    for rows, x, y in run.batches(iterations=12):
        optimizer.zero_grad()
        found = model["used"](x)
        rare = rows % 40 == 0
        if rare.any():
            found = found + rare[:, None] * model["rare"](x)
        run.backward(mse_loss(found, y))
        reached.append(model["rare"].weight.grad is not None)
        optimizer.step()
    run.close()
    return reached, weights(model)


def bf16_parameters(attach: Any) -> Any:
    """Summed in float32; compared within what the type can tell."""
    model = net().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, data())
    for _, x, y in run.batches(iterations=4):
        optimizer.zero_grad()
        run.backward(mse_loss(model(x.bfloat16()).float(), y.float()))
        optimizer.step()
    run.close()
    return weights(model)


def mixed_types(attach: Any) -> Any:
    """Layers of float32 and float64 in one model."""
    model = nn.ModuleList([nn.Linear(6, 8), nn.Linear(8, 1).float()])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, data())
    for _, x, y in run.batches(iterations=4):
        optimizer.zero_grad()
        run.backward(mse_loss(model[1](torch.tanh(model[0](x)).float()).double(), y))
        optimizer.step()
    run.close()
    return weights(model)


def sparse_embedding(attach: Any) -> Any:
    """Sparse gradients are summed as dense ones."""
    model = nn.ModuleDict({"words": nn.Embedding(40, 4, sparse=True), "out": nn.Linear(4, 1)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, data())
    for rows, _, y in run.batches(iterations=8):
        optimizer.zero_grad()
        run.backward(mse_loss(model["out"](model["words"](rows % 40)), y))
        optimizer.step()
    run.close()
    return weights(model)


def shared_weights(attach: Any) -> Any:
    """Two layers with one weight, as in language models."""
    model = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Tanh(), nn.Linear(6, 6, bias=False), nn.Linear(6, 1))
    model[2].weight = model[0].weight
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    run = attach(model, optimizer, data())
    for _, x, y in run.batches(iterations=8):
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        optimizer.step()
    run.close()
    return weights(model)


def frozen_after_the_sum(attach: Any) -> Any:
    """A layer is frozen between two sums of one step: its gradient is clipped and stepped as plain torch does."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    run = attach(model, optimizer, data())
    for number, (_, x, y) in enumerate(run.batches(iterations=8)):
        model[0].requires_grad_(number % 2 == 0)
        run.backward(mse_loss(model(x), y) / 2)
        if number % 2:
            run.clip_grad_norm_(0.1)
            optimizer.step()
            optimizer.zero_grad()
    run.close()
    return weights(model)
