"""Losses that are means over other units than samples: tokens, or samples with weights of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from tests.cases.harness import data, net, weights

TOKENS = 6  # of a sample that is full


def token_counts(rows: torch.Tensor) -> torch.Tensor:
    """Random, the same for a sample in every epoch; two thirds of the samples have none."""
    generator = torch.Generator().manual_seed(2)
    return (torch.randint(-2 * TOKENS, TOKENS + 1, (192,), generator=generator).clamp(min=0))[rows]


def token_loss(model: nn.Module, rows: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The sum over tokens. Every input of a sample is a token here; what is beyond its count is padding."""
    valid = torch.arange(TOKENS) < token_counts(rows)[:, None]
    found: torch.Tensor = ((model(x) - y).square() * (1 + x) ** 2 * valid).sum()
    return found


def padded_tokens(attach: Any) -> Any:
    """The mean over the tokens of a batch, which is NaN on a worker whose samples have none; clipped, with decay."""
    model, norms = net(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    run = attach(model, optimizer, data())
    for rows, x, y in run.batches(epochs=2):
        optimizer.zero_grad()
        tokens = token_counts(rows).sum()
        run.backward(token_loss(model, rows, x, y) / tokens, weight=tokens)
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
        optimizer.step()
    run.close()
    return norms, weights(model)


def parts_of_the_batch(attach: Any) -> Any:
    """Every batch in four parts. They are divided by the tokens of the whole batch, of which some workers have none."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, data())
    for rows, x, y in run.batches(epochs=2):
        optimizer.zero_grad()
        tokens = int(token_counts(rows).sum())
        parts = torch.arange(len(rows)).chunk(4)
        for number, part in enumerate(parts):
            loss = token_loss(model, rows[part], x[part], y[part]) / torch.tensor(tokens)
            if number < len(parts) - 1:
                loss.backward()
            else:
                run.backward(loss, weight=tokens)
        optimizer.step()
    run.close()
    return weights(model)


def step_after_two_batches(attach: Any) -> Any:
    """run.backward() with the tokens of every batch, a step after every second."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
    run = attach(model, optimizer, data())
    for number, (rows, x, y) in enumerate(run.batches(iterations=8)):
        tokens = token_counts(rows).sum()
        run.backward(token_loss(model, rows, x, y) / tokens / 2, weight=tokens)
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    run.close()
    return weights(model)


def no_loss_without_tokens(attach: Any) -> Any:
    """A script that returns the number 0 where there is nothing to learn from."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, data())
    for rows, x, y in run.batches(epochs=1):
        optimizer.zero_grad()
        tokens = token_counts(rows).sum()
        run.backward(token_loss(model, rows, x, y) / tokens if tokens else 0.0, weight=tokens)
        optimizer.step()
    run.close()
    return weights(model)


def scaled_by_a_grad_scaler(attach: Any) -> Any:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    run = attach(model, optimizer, data())
    for rows, x, y in run.batches(epochs=1):
        optimizer.zero_grad()
        tokens = token_counts(rows).sum()
        run.backward(scaler.scale(token_loss(model, rows, x, y) / tokens), weight=tokens)
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        scaler.step(optimizer)
        scaler.update()
    run.close()
    return scaler.get_scale(), weights(model)


def weights_of_classes(attach: Any) -> Any:
    """Torch's own weights: the mean is over the weights of the targets."""
    model, of_class = net(outputs=3), torch.tensor([0.2, 3.0, 0.7])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, data())
    for rows, x, _ in run.batches(epochs=1):
        optimizer.zero_grad()
        run.backward(cross_entropy(model(x), rows % 3, weight=of_class), weight=of_class[rows % 3].sum())
        optimizer.step()
    run.close()
    return weights(model)


def budgets_of_tokens(attach: Any) -> Any:
    """Every worker takes samples until their tokens fill its size, if the cluster file says so."""
    model, taken = net(), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, data(), lengths=token_counts(torch.arange(192)) + 1)
    for rows, x, y in run.batches(epochs=2):
        optimizer.zero_grad()
        tokens = token_counts(rows).sum()
        run.backward(token_loss(model, rows, x, y) / tokens, weight=tokens)
        optimizer.step()
        taken += 1
    run.close()
    return taken, weights(model)


def one_of_two_losses(attach: Any) -> Any:
    """Two models, of which only one has a loss over tokens."""
    first, second = net(), net()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (first, second)]
    run = attach([first, second], optimizers, data())
    for rows, x, y in run.batches(epochs=1):
        optimizers[0].zero_grad()
        run.backward(mse_loss(first(x), y))
        optimizers[0].step()
        optimizers[1].zero_grad()
        tokens = token_counts(rows).sum()
        run.backward(token_loss(second, rows, x, y - first(x).detach()) / tokens, weight=tokens)
        optimizers[1].step()
    run.close()
    return weights(first, second)
