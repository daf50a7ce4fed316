"""The running statistics of batch norm where one process computes the batches of several workers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.modules.batchnorm import _BatchNorm


def batch_norms(model: torch.nn.Module) -> list[torch.nn.Module]:
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


class RunningStatistics:
    """Those of batch norm: every worker's forward pass begins with the same, and their weighted mean stays."""

    def __init__(self, norms: Sequence[torch.nn.Module]) -> None:
        buffers = [buffer for norm in norms if norm.training for buffer in norm.buffers()]
        self._before = [(buffer, buffer.clone()) for buffer in buffers]
        self._sums = [torch.zeros_like(buffer) for buffer in buffers]

    def restart(self) -> None:
        """The forward pass of the next worker begins."""
        for buffer, value in self._before:
            buffer.data.copy_(value)  # not seen by autograd

    def take(self, share: float) -> None:
        """That of a worker with this share of the samples is over."""
        for (buffer, _), total in zip(self._before, self._sums, strict=True):
            if buffer.is_floating_point():
                total.add_(buffer, alpha=share)
            else:
                total.copy_(buffer)  # the number of forward passes, the same on every worker

    def deliver(self) -> None:
        """That of the last worker is over."""
        for (buffer, _), total in zip(self._before, self._sums, strict=True):
            buffer.data.copy_(total)
