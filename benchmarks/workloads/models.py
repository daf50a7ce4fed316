"""Small models for the workloads, by name. To add one: write a builder and enter it in MODELS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from dynamix_ps.errors import UsageError

Shape = tuple[int, int, int]  # channels, height, width


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A builder, called with (input shape, classes), the input shapes it is made for (none: any), and a description."""

    build: Callable[[Shape, int], nn.Module]
    shapes: tuple[Shape, ...]
    about: str


def make_model(name: str, shape: Shape, classes: int) -> nn.Module:
    """A freshly initialised model. Raises UsageError for an unknown name or inputs it is not made for."""
    entry = MODELS.get(name)
    if entry is None:
        raise UsageError(f"unknown model {name!r}; known models: {', '.join(sorted(MODELS))}")
    if entry.shapes and shape not in entry.shapes:
        fitting = sorted(other for other, candidate in MODELS.items() if shape in (candidate.shapes or (shape,)))
        raise UsageError(
            f"model {name!r} takes inputs of {' or '.join(map(_text, entry.shapes))}, got {_text(shape)}; "
            f"models that fit: {', '.join(fitting)}"
        )
    return entry.build(shape, classes)


def count_parameters(model: nn.Module) -> int:
    """Numbers that a worker sends per iteration."""
    return sum(parameter.numel() for parameter in model.parameters())


class ChannelsLast(nn.Module):
    """Lets the convolutions behind it work on channels-last memory: half their time on a CPU, the same numbers."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.to(memory_format=torch.channels_last)


def _cnn(shape: Shape, classes: int) -> nn.Module:
    return nn.Sequential(
        ChannelsLast(),
        nn.Conv2d(1, 16, 5, padding=2),
        nn.MaxPool2d(2),  # before the activation: the same result for a quarter of the work
        nn.ReLU(),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


def _mlp(shape: Shape, classes: int) -> nn.Module:
    channels, height, width = shape
    return nn.Sequential(
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(channels * (height // 2) * (width // 2), 64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )


def _cifar_cnn(shape: Shape, classes: int) -> nn.Module:
    return nn.Sequential(
        ChannelsLast(),
        nn.Conv2d(3, 32, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


MODELS = {
    "cnn": ModelEntry(_cnn, ((1, 28, 28),), "two 5x5 convolutions, 215,370 parameters with 10 classes"),
    "mlp": ModelEntry(_mlp, (), "three dense layers on inputs halved in size, 17,418 parameters for 1x28x28"),
    "cifar-cnn": ModelEntry(_cifar_cnn, ((3, 32, 32),), "three 3x3 convolutions, 188,810 parameters with 10 classes"),
}


def _text(shape: Shape) -> str:
    return "x".join(map(str, shape))
