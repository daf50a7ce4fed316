"""Layers with running statistics. Batches are normalised by worker, as under DistributedDataParallel."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss

from tests.cases.harness import data, net, weights


def layer_norm(attach: Any) -> Any:
    """Without running statistics: equal to one process."""
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GroupNorm(2, 8), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    run = attach(model, optimizer, data())
    for _, x, y in run.batches(epochs=2):
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        optimizer.step()
    run.close()
    return weights(model)


def batch_norm(attach: Any) -> Any:
    """Returns everything after each iteration."""
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    run, found = attach(model, optimizer, data()), []
    for _, x, y in run.batches(epochs=1):
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        optimizer.step()
        found.append(weights(model[0])[2:4])
    run.close()
    return found


def frozen_batch_norm(attach: Any) -> Any:
    """In mode eval its statistics stay: equal to one process."""
    model = nn.Sequential(net(outputs=4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    model[1].eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, data())
    for _, x, y in run.batches(epochs=1):
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        optimizer.step()
    run.close()
    return weights(model)


def gan(attach: Any) -> Any:
    """What the generator made before the step of the critic is used again after it."""
    generator, critic = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6)), nn.Linear(6, 1)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (generator, critic)]
    run = attach([generator, critic], optimizers, data())
    for _, real, _ in run.batches(epochs=2):
        fake = generator(torch.randn(len(real), 4))
        optimizers[1].zero_grad()
        run.backward((critic(fake.detach()) - critic(real)).mean())
        optimizers[1].step()
        optimizers[0].zero_grad()
        run.backward(-critic(fake).mean())
        optimizers[0].step()
    run.close()
    return weights(generator, critic)
