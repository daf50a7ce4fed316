"""A training in one process: what a job with the same samples and rates must come to."""

from __future__ import annotations

from typing import Any

import torch


def replayed(model: str, sums: list[dict[str, Any]]) -> list[torch.Tensor]:
    """The weights of one process after steps with these `numbers` of samples, and this `factor` on the rates.

    `model` is a text of Python, which defines `data`, `model`, `optimizers`, and `before(iteration)`, which is called
    first in every iteration.
    """
    own: dict[str, Any] = {}
    exec(model, own)
    inputs, targets = own["data"].tensors
    groups = [group for optimizer in own["optimizers"] for group in optimizer.param_groups]
    rates = [group["lr"] for group in groups]
    for iteration, one in enumerate(sums):
        own["before"](iteration)
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate * one["factor"]
        for optimizer in own["optimizers"]:
            optimizer.zero_grad()
        numbers = one["numbers"]
        torch.nn.functional.cross_entropy(own["model"](inputs[numbers]), targets[numbers]).backward()  # type: ignore[no-untyped-call]
        for optimizer in own["optimizers"]:
            optimizer.step()
    return [parameter.detach() for parameter in own["model"].parameters()]
