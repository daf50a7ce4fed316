"""What the scripts share: their command line, images with a small network for them, and batches of text."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset

from benchmarks.workloads import data
from benchmarks.workloads.torch_samples import SampleSet

SIZE = 32  # first batch size of every worker that the cluster file gives none


def arguments(about: str | None, epochs: int) -> argparse.Namespace:
    """`epochs`, `samples` and `images` of the command line."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--samples", type=int, default=12_000, help="at most so many to train on, a sixth to evaluate")
    parser.add_argument("--images", choices=data.IMAGES, default="fashion-mnist")
    return parser.parse_args()


def loaders(images: str, samples: int) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """To train on, and to evaluate on."""
    found = data.load(images)
    train = Subset(SampleSet(found.train), range(min(samples, len(found.train))))
    test = Subset(SampleSet(found.test), range(min(samples // 6, len(found.test))))
    return DataLoader(train, batch_size=SIZE, shuffle=True), DataLoader(test, batch_size=250)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 7 * 7, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def padded(lines: Sequence[bytes]) -> dict[str, torch.Tensor]:
    """A batch for a language model over bytes, as long as the longest line."""
    labels = torch.full((len(lines), max(map(len, lines))), -100)
    for row, line in enumerate(lines):
        labels[row, : len(line)] = torch.tensor(list(line))
    return {"input_ids": labels.clamp(min=0), "labels": labels, "attention_mask": (labels >= 0).long()}
