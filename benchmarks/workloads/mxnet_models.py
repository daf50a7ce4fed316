"""MXNet versions of some models of models.py, with the same layers and names."""

from __future__ import annotations

from collections.abc import Callable

import mxnet as mx
from mxnet.gluon import nn

Shape = tuple[int, ...]  # channels, height, width

# the default first weights of torch: uniform within 1 / sqrt(inputs)
_LIKE_TORCH = mx.init.Xavier(rnd_type="uniform", factor_type="in", magnitude=1)


def make_model(name: str, shape: Shape, classes: int) -> nn.HybridSequential:
    """A freshly initialised model of MODELS, for inputs of `shape`."""
    net = nn.HybridSequential()
    net.add(*MODELS[name](shape, classes))
    net.initialize(_LIKE_TORCH)
    net.hybridize()
    return net


def _cnn(shape: Shape, classes: int) -> list[nn.HybridBlock]:
    return [
        nn.Conv2D(16, 5, padding=2, in_channels=shape[0]),
        nn.MaxPool2D(2),
        nn.Activation("relu"),
        nn.Conv2D(32, 5, padding=2, in_channels=16),
        nn.MaxPool2D(2),
        nn.Activation("relu"),
        nn.Flatten(),
        nn.Dense(128, activation="relu", in_units=32 * (shape[1] // 4) * (shape[2] // 4)),
        nn.Dense(classes, in_units=128),
    ]


def _mlp(shape: Shape, classes: int) -> list[nn.HybridBlock]:
    channels, height, width = shape
    return [
        nn.AvgPool2D(2),
        nn.Flatten(),
        nn.Dense(64, activation="relu", in_units=channels * (height // 2) * (width // 2)),
        nn.Dense(64, activation="relu", in_units=64),
        nn.Dense(classes, in_units=64),
    ]


MODELS: dict[str, Callable[[Shape, int], list[nn.HybridBlock]]] = {"cnn": _cnn, "mlp": _mlp}
