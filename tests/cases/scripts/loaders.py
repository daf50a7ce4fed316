"""Scripts that keep their DataLoader."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, SubsetRandomSampler, WeightedRandomSampler, default_collate

from tests.cases.harness import data, net, weights


def steps(attach: Any, loader: Any, epochs: int = 2) -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run = attach(model, optimizer, loader)
    for _ in run.epochs(epochs):
        for _, x, y in run.batches():
            optimizer.zero_grad()
            run.backward(mse_loss(model(x), y))
            optimizer.step()
    run.close()
    return weights(model)


def weighted_sampler(attach: Any) -> Any:
    """Some samples several times in a pass, some never."""
    chances = [1.0 + number % 5 for number in range(192)]
    sampler = WeightedRandomSampler(chances, 150, generator=torch.Generator().manual_seed(2))
    return steps(attach, DataLoader(data(), 16, sampler=sampler, num_workers=2, prefetch_factor=1))


def subset_by_the_global_generator(attach: Any) -> Any:
    return steps(attach, DataLoader(data(), 16, sampler=SubsetRandomSampler(range(40, 180)), drop_last=True))


def own_collate_function(attach: Any) -> Any:
    """It returns tuples, and processes stay from pass to pass."""
    loader = DataLoader(
        data(),
        16,
        shuffle=True,
        collate_fn=lambda samples: tuple(default_collate(samples)),
        num_workers=1,
        persistent_workers=True,
    )
    return steps(attach, loader, epochs=3)
