"""Models for the workloads, by name. To add one, write a builder and add it to MODELS.

Models normalise only within each sample (GroupNorm, LayerNorm). Batch normalisation would compute its statistics from
each worker's share: another split of the same samples would change the function and its gradients, and the comparison
of policies would include this effect of their sizes. For the same reason no model is random in training (no dropout).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from benchmarks.workloads.text import CONTEXT
from benchmarks.workloads.transformers import ByteGPT, PatchTransformer
from dynamix_ps.errors import UsageError

Shape = tuple[int, ...]  # channels, height, width of an image; bytes of a text
_CIFAR: Shape = (3, 32, 32)
_TEXT: Shape = (CONTEXT,)


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A builder, called with (input shape, classes), the shapes it supports (empty: any image), and a description."""

    build: Callable[[Shape, int], nn.Module]
    shapes: tuple[Shape, ...]
    about: str

    def fits(self, shape: Shape) -> bool:
        return shape in self.shapes if self.shapes else len(shape) == 3


def make_model(name: str, shape: Shape, classes: int) -> nn.Module:
    """A freshly initialised model. Raises UsageError for an unknown name or unsupported inputs."""
    entry = MODELS.get(name)
    if entry is None:
        raise UsageError(f"unknown model {name!r}; known models: {', '.join(sorted(MODELS))}")
    if not entry.fits(shape):
        fitting = sorted(other for other, candidate in MODELS.items() if candidate.fits(shape))
        raise UsageError(
            f"model {name!r} takes inputs of {' or '.join(map(_text, entry.shapes)) or 'images'}, got {_text(shape)}; "
            f"models that fit: {', '.join(fitting)}"
        )
    return entry.build(shape, classes)


def count_parameters(model: nn.Module) -> int:
    """The number of values that a worker sends per iteration."""
    return sum(parameter.numel() for parameter in model.parameters())


class ChannelsLast(nn.Module):
    """Converts inputs to channels-last memory: convolutions take half the time on a CPU, with the same results."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.to(memory_format=torch.channels_last)


def _cnn(shape: Shape, classes: int) -> nn.Module:
    return nn.Sequential(
        ChannelsLast(),
        nn.Conv2d(1, 16, 5, padding=2),
        nn.MaxPool2d(2),  # before the activation: same result, a quarter of the work
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


def _vgg11(divisor: int) -> Callable[[Shape, int], nn.Module]:
    """Configuration A of arXiv 1409.1556 with all widths divided, and one dense layer, as usual for 32x32 images.

    Weights are initialised as in arXiv 1502.01852; otherwise eleven layers without normalisation do not learn.
    """

    def build(shape: Shape, classes: int) -> nn.Module:
        layers: list[nn.Module] = [ChannelsLast()]
        before = 3
        for block in ((64,), (128,), (256, 256), (512, 512), (512, 512)):
            for width in (full // divisor for full in block):
                convolution = nn.Conv2d(before, width, 3, padding=1)
                nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
                layers += [convolution, nn.ReLU()]
                before = width
            layers.insert(len(layers) - 1, nn.MaxPool2d(2))
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(before, classes))

    return build


class ResidualBlock(nn.Module):
    """relu(x + f(x)) with two 3x3 convolutions (arXiv 1512.03385, figure 2), GroupNorm with eight channels a group."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride, padding=1, bias=False),
            _group_norm(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            _group_norm(width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels != width:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), _group_norm(width))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(inputs) + self.shortcut(inputs))


def _resnet8(width: int) -> Callable[[Shape, int], nn.Module]:
    """The CIFAR form of arXiv 1512.03385 (4.2) with n = 1, on images halved by its first layer.

    Args:
        width: of the first block; there it is 16.
    """

    def build(shape: Shape, classes: int) -> nn.Module:
        return nn.Sequential(
            ChannelsLast(),
            nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False),
            _group_norm(width),
            nn.ReLU(),
            ResidualBlock(width, width, stride=1),
            ResidualBlock(width, 2 * width, stride=2),
            ResidualBlock(2 * width, 4 * width, stride=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4 * width, classes),
        )

    return build


def _small_gpt(shape: Shape, classes: int) -> nn.Module:
    return ByteGPT(shape, classes, width=48, heads=3, depth=1)


def _group_norm(width: int) -> nn.GroupNorm:
    return nn.GroupNorm(width // 8, width)


MODELS = {
    "cnn": ModelEntry(_cnn, ((1, 28, 28),), "two 5x5 convolutions, 215,370 parameters with 10 classes"),
    "mlp": ModelEntry(_mlp, (), "three dense layers on inputs halved in size, 17,418 parameters for 1x28x28"),
    "cifar-cnn": ModelEntry(_cifar_cnn, (_CIFAR,), "three 3x3 convolutions, 188,810 parameters with 10 classes"),
    "vgg11": ModelEntry(_vgg11(1), (_CIFAR,), "VGG11 with one dense layer, 9,225,610 parameters with 10 classes"),
    "vgg11-slim": ModelEntry(_vgg11(4), (_CIFAR,), "VGG11 of a quarter of the width, 578,410 parameters"),
    "vgg11-thin": ModelEntry(_vgg11(8), (_CIFAR,), "VGG11 of an eighth of the width, 145,210 parameters"),
    "resnet8": ModelEntry(_resnet8(32), (_CIFAR,), "three residual blocks, 308,650 parameters with 10 classes"),
    "resnet8-thin": ModelEntry(_resnet8(16), (_CIFAR,), "the same of half the width, 78,042 parameters"),
    "patch-transformer": ModelEntry(PatchTransformer, (_CIFAR,), "two layers on 64 patches, 43,930 parameters"),
    "gpt": ModelEntry(ByteGPT, (_TEXT,), "two layers on 64 bytes, 279,424 parameters"),
    "gpt-small": ModelEntry(_small_gpt, (_TEXT,), "one layer of half the width on 64 bytes, 56,272 parameters"),
}


def _text(shape: Shape) -> str:
    return "x".join(map(str, shape))
