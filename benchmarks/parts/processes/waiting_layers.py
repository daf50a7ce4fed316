"""Models whose layers wait instead of computing: gradients are as large and come as late as those of a real model.

So workers that share the cores of one machine do not slow each other down, as they would not on machines of their own.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

_BACKWARD = 2 / 3  # of the time of a layer (arXiv 2001.08361)
_VGG11 = ((3, 64, 32), (64, 128, 16), (128, 256, 8), (256, 256, 8), (256, 512, 4), (512, 512, 4), (512, 512, 2))
LAYERS = {  # values, and share of the time, of each layer
    "gpt": [(values, values) for values in (49_152, 16_384, 65_536, 65_536)] * 12,  # of 12 blocks
    "vgg11": [(9 * given * made, given * made * size**2) for given, made, size in (*_VGG11, _VGG11[-1])],
}


class WaitingLayers(nn.Module):
    """One of `LAYERS`; an iteration takes `seconds`, whatever it gets."""

    def __init__(self, model: str, seconds: float) -> None:
        super().__init__()
        layers = LAYERS[model]
        whole = sum(share for _, share in layers)
        self.layers = nn.Sequential(*(_Layer(values, seconds * share / whole) for values, share in layers))
        self.begin = nn.Parameter(torch.zeros(10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(x[:, :10] + self.begin)
        return found


class _Layer(nn.Module):
    def __init__(self, values: int, seconds: float) -> None:
        super().__init__()
        self.weight, self._seconds = nn.Parameter(torch.zeros(values)), seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = _Wait.apply(x, self.weight, self._seconds)  # type: ignore[no-untyped-call]
        return found


class _Wait(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.values, ctx.seconds = len(weight), seconds
        time.sleep(seconds * (1 - _BACKWARD))
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        time.sleep(ctx.seconds * _BACKWARD)
        return gradients[0], torch.full((ctx.values,), 1e-6), None
