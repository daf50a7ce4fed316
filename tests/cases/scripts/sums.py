"""Losses that are sums over samples, which a constant may divide: run.backward(loss, reduction="sum")."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss, normalize

from tests.cases.harness import data, net, weights

BATCH = 32  # of all workers together


def divided_by_a_constant(attach: Any) -> Any:
    """At the ends of passes there are fewer samples, and the gradient is smaller; a penalty has its own part of it."""
    model, norms = net(outputs=3), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    run = attach(model, optimizer, data(200))
    for rows, x, _ in run.batches(epochs=2):
        optimizer.zero_grad()
        penalty = 1e-3 * sum(p.square().sum() for p in model.parameters())
        loss = cross_entropy(model(x), rows % 3, reduction="sum") / BATCH
        run.backward(loss + penalty / run.size, reduction="sum")
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.3)))
        optimizer.step()
    run.close()
    return norms, weights(model)


def in_parts_of_the_batch(attach: Any) -> Any:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    run = attach(model, optimizer, data())
    for _, x, y in run.batches(epochs=2):
        optimizer.zero_grad()
        for number, (a, b) in enumerate(zip(x.chunk(4), y.chunk(4), strict=True)):
            loss = mse_loss(model(a), b, reduction="sum") / BATCH
            if number < 3:
                loss.backward()
            else:
                run.backward(loss, reduction="sum")
        optimizer.step()
    run.close()
    return weights(model)


def over_batches(attach: Any) -> Any:
    """A step after the first batch, and then after every third, while sizes change."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    run = attach(model, optimizer, data())
    for number, (_, x, y) in enumerate(run.batches(iterations=10)):
        loss = mse_loss(model(x), y, reduction="sum") / BATCH
        if number % 3:
            loss.backward()
        else:
            run.backward(loss, reduction="sum")
            optimizer.step()
            optimizer.zero_grad()
    run.close()
    return weights(model)


def over_batches_run_backward(attach: Any) -> Any:
    """run.backward() for every batch, a step after every second: gradients of both are in it."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, data())
    for number, (_, x, y) in enumerate(run.batches(iterations=8)):
        run.backward(mse_loss(model(x), y, reduction="sum") / BATCH, reduction="sum")
        if number % 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=number % 4 == 1)
    run.close()
    return weights(model)


def scaled_by_a_grad_scaler(attach: Any) -> Any:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    run = attach(model, optimizer, data())
    for _, x, y in run.batches(epochs=1):
        optimizer.zero_grad()
        run.backward(scaler.scale(mse_loss(model(x), y, reduction="sum")), reduction="sum")
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        scaler.step(optimizer)
        scaler.update()
    run.close()
    return scaler.get_scale(), weights(model)


def beside_means(attach: Any) -> Any:
    """Two models, of which one has a loss that is a sum. Its gradients go through the other, too."""
    g, d = net(outputs=2), net(inputs=2)
    of_g, of_d = torch.optim.SGD(g.parameters(), 0.1), torch.optim.SGD(d.parameters(), 0.1)
    run = attach([g, d], [of_g, of_d], data())
    bce = binary_cross_entropy_with_logits
    for _, x, y in run.batches(iterations=8):
        real = torch.cat([y, y * y], 1)
        of_d.zero_grad()
        run.backward(bce(d(real), torch.ones_like(y)) + bce(d(g(x).detach()), torch.zeros_like(y)))
        of_d.step()
        of_g.zero_grad()
        run.backward(bce(d(g(x)), torch.ones_like(y), reduction="sum") / BATCH, reduction="sum")
        of_g.step()
    run.close()
    return weights(g, d)


def divided_by_its_samples(attach: Any) -> Any:
    """A sum that the script divides by the samples of its batch is a mean, and needs nothing."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, data(200))
    for _, x, y in run.batches(epochs=2):
        optimizer.zero_grad()
        penalty = 1e-3 * sum(p.square().sum() for p in model.parameters())
        run.backward(mse_loss(model(x), y, reduction="sum") / len(x) + penalty)
        optimizer.step()
    run.close()
    return weights(model)


def means_of_parts(attach: Any) -> Any:
    """Parts of the batch have other numbers of rows than the batch has samples; nothing is said of them."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, data())
    for _, x, y in run.batches(iterations=4):
        optimizer.zero_grad()
        cut = len(x) * 3 // 8
        (mse_loss(model(x[:cut]), y[:cut]) * cut / len(x)).backward()
        run.backward(mse_loss(model(x[cut:]), y[cut:]) * (len(x) - cut) / len(x))
        optimizer.step()
    run.close()
    return weights(model)


def pairs_of_a_batch(attach: Any) -> None:
    """Every sample is compared with the others of its batch."""
    model = net(outputs=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, data())
    for _, x, _ in run.batches(iterations=4):
        optimizer.zero_grad()
        z = normalize(model(x))
        run.backward(cross_entropy(z @ z.T / 0.5, torch.arange(len(x)).roll(1)))
        optimizer.step()
    run.close()
