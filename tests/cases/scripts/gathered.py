"""Losses over pairs in a batch, with the rows of all workers: `run.gather`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss, normalize

from tests.cases.harness import data, flat, net, weights


def _start(attach: Any) -> Any:
    model = net(outputs=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
    return model, optimizer, attach(model, optimizer, data(200))


def _views(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two views of each sample."""
    return x + 0.1 * torch.sin(40 * x), x + 0.1 * torch.cos(40 * x)


def nt_xent(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Each view has to find the other one of its sample among all views of all samples."""
    z = torch.cat([first, second])
    alike = (z @ z.T / 0.5).masked_fill(torch.eye(len(z), dtype=torch.bool), -1e9)
    return cross_entropy(alike, torch.arange(len(z)).roll(len(first)))


def sup_con(rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Every row has to find those of its label."""
    others = ~torch.eye(len(rows), dtype=torch.bool)
    same = (labels[:, None] == labels) & others
    alike = rows @ rows.T / 0.5
    alike = alike - alike.masked_fill(~others, -1e9).logsumexp(1, keepdim=True)
    return -((alike * same).sum(1) / same.sum(1).clamp(min=1)).mean()


def two_views(attach: Any) -> Any:
    """Rounds to the end of a pass, where there are fewer samples."""
    model, optimizer, run = _start(attach)
    losses = []
    for _, x, _ in run.batches(epochs=2):
        optimizer.zero_grad()
        first, second = (run.gather(normalize(model(view))) for view in _views(x))
        loss = nt_xent(first, second)
        run.backward(loss)
        losses.append(loss.item())
        optimizer.step()
    run.close()
    return losses, weights(model)


def labels_too(attach: Any) -> Any:
    """A head and a temperature behind the rows, a mean over own samples beside them, and a penalty on weights."""
    model = nn.ModuleDict({"body": net(outputs=4), "head": nn.Linear(4, 4), "own": nn.Linear(4, 1)})
    model.temperature = nn.Parameter(torch.tensor(0.3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    run = attach(model, optimizer, data(200))
    for number, x, y in run.batches(epochs=2):
        optimizer.zero_grad()
        z = model["body"](x)
        rows, labels = run.gather(z), run.gather((number % 3).short())
        loss = sup_con(normalize(model["head"](rows)) * model.temperature, labels)
        penalty = 1e-2 * sum(p.square().sum() for p in model.parameters())
        run.backward(loss + 0.5 * mse_loss(model["own"](z), y) + penalty)
        optimizer.step()
    run.close()
    return weights(model)


def over_parts(attach: Any) -> Any:
    """A step for three batches; some of their losses have gathered rows, and others have none."""
    model, optimizer, run = _start(attach)
    for number, (rows, x, _) in enumerate(run.batches(iterations=12)):
        z = normalize(model(x))
        loss = sup_con(run.gather(z), run.gather(rows % 3)) if number % 4 else z.square().mean()
        if number % 3 < 2:
            loss.backward()
            continue
        run.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    run.close()
    return weights(model)


def in_turns(attach: Any) -> Any:
    """Numbers of gathers change from sum to sum, and evaluations come between; whole batches have statistics alike."""
    model, optimizer, run = _start(attach)
    norm = nn.BatchNorm1d(4, affine=False)
    seen = []
    for number, (rows, x, _) in enumerate(run.batches(iterations=9)):
        optimizer.zero_grad()
        z = model(x)
        loss = mse_loss(z, torch.ones_like(z))
        if number % 3:
            loss = loss + sup_con(norm(run.gather(z)), run.gather(rows % 2))
        run.backward(loss)
        optimizer.step()
        if number % 4 == 1:
            with torch.no_grad():
                seen.append(sorted(run.gather(rows).tolist()))
            seen.append(run.evaluate(data(40), lambda _, a, b: float(model(a).sum())))
    run.close()
    return seen, weights(model, norm)


def one_ahead(attach: Any) -> Any:
    """The next batch is taken before the present one is trained."""
    model, optimizer, run = _start(attach)
    batches = iter(run.batches(epochs=2))
    coming = next(batches, None)
    while coming is not None:
        (rows, x, _), coming = coming, next(batches, None)
        optimizer.zero_grad()
        run.backward(sup_con(run.gather(normalize(model(x))), run.gather(rows % 3)))
        optimizer.step()
    run.close()
    return weights(model)


def own_numbers(attach: Any) -> Any:
    """Means of the script's own: by samples, of tuples, and of workers that have measured nothing."""
    model, optimizer, run = _start(attach)
    held_out = data(50).tensors[1]
    seen = []
    for _, x, y in run.batches(iterations=8):
        optimizer.zero_grad()
        loss = mse_loss(model(x), y.expand(-1, 4))
        seen.append(run.mean({"loss": loss.detach(), "mean": x.mean()}, weight=len(x)))
        run.backward(loss)
        optimizer.step()
        with torch.no_grad():
            mine = model(held_out[run.rank :: run.size]).square().mean().item()
        seen.append(run.mean((mine, 2.0), weight=len(range(run.rank, 50, run.size))))
        seen.append(run.mean(3.0 if run.rank == 0 else float("nan"), weight=run.rank == 0))
    run.close()
    return [float(one) for one in flat(seen)], weights(model)
