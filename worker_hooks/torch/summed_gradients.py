"""Gradients that the last sum has left in the model: where losses are sums, one worker adds them to the next sum."""

from __future__ import annotations

from collections.abc import Collection

import torch

from worker_hooks.torch.parameters import TorchParameters


class SummedGradients:
    """Those of all trained parameters. What the script has added by loss.backward() is no such gradient."""

    def __init__(self, parameters: TorchParameters) -> None:
        self._parameters = parameters
        self._noted: set[torch.nn.Parameter] = set()

    def note(self) -> None:
        """The script is about to call loss.backward(), for the first time since the last sum."""
        self._noted = {p for p in self._parameters.trained.values() if p.grad is not None}

    def are_among(self, added_to: Collection[torch.nn.Parameter]) -> bool:
        """Whether loss.backward() has added to some of them, if it has added to gradients of these parameters."""
        return not self._noted.isdisjoint(added_to)

    def drop(self, added_to: Collection[torch.nn.Parameter]) -> bool:
        """Another worker keeps them. Returns whether there were some."""
        left = [p for p in self._parameters.trained.values() if p.grad is not None and p not in added_to]
        for parameter in left:
            parameter.grad = None
        return bool(left)
