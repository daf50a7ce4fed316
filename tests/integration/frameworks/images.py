"""Fashion-MNIST for the scripts of this folder."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset

from benchmarks.workloads.data import load
from benchmarks.workloads.torch_images import ImageSet

TRAIN, TEST = 12_000, 2_000  # samples


def loaders() -> tuple[DataLoader[Any], DataLoader[Any]]:
    images = load("fashion-mnist")
    train, test = Subset(ImageSet(images.train), range(TRAIN)), Subset(ImageSet(images.test), range(TEST))
    return DataLoader(train, batch_size=32, shuffle=True), DataLoader(test, batch_size=250)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 7 * 7, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
