"""What torch workloads minimise and report: of the label of each image, or of the next byte at every place of a text.

`logits` are (samples, classes) with `targets` (samples,), or (samples, bytes, classes) with targets (samples, bytes).
"""

from __future__ import annotations

import math

import torch
from torch.nn.functional import cross_entropy


def outputs(model: torch.nn.Module, inputs: torch.Tensor, autocast: str | None) -> torch.Tensor:
    """Logits in float32, so that losses are. With `autocast` (--autocast) layers compute in bfloat16."""
    with torch.autocast(inputs.device.type, torch.bfloat16, enabled=autocast is not None):
        logits: torch.Tensor = model(inputs)
    return logits.float()


def mean_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """In nats per image, or per byte."""
    return cross_entropy(logits.flatten(0, -2), targets.flatten())


def correct(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """How many targets have the largest logit."""
    return (logits.argmax(-1) == targets).sum()


def weight(targets: torch.Tensor) -> int | None:
    """The bytes that the loss of a text is a mean over; none for images, whose loss is a mean over samples."""
    return None if targets.dim() == 1 else targets.numel()


def scores(logits: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
    """Accuracy and loss, and of a text bits per byte (`bpb`): sums over samples, as `run.evaluate` wants them."""
    bytes_per_sample = math.prod(targets.shape[1:])  # 1 for images
    loss = cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum") / bytes_per_sample
    found = {"accuracy": correct(logits, targets) / bytes_per_sample, "loss": loss}
    return found if targets.dim() == 1 else found | {"bpb": loss / math.log(2)}
