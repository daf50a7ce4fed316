"""Models that do not fit into the memory of worker 1 with its whole batch."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss

from dynamix_ps.cgroups import memory_in_use
from tests.cases.harness import data, net, weights

FITS = 10  # samples
MEMORY = 240 << 20  # bytes that Wide has: for less than 20 samples
MEMORY_GROUP = "DYNAMIX_TEST_MEMORY_GROUP"  # variable: control group that a worker joins


class Measured(nn.Module):
    """Counts how often more than FITS samples did not fit, if it is `limited`."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.limited, self.failures, self.largest = net(), False, 0, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.limited and len(x) > FITS:
            self.failures += 1
            raise torch.OutOfMemoryError(f"CUDA out of memory: {len(x)} samples")
        self.largest = max(self.largest, len(x))
        outputs: torch.Tensor = self.layers(x)
        return outputs


class Wide(nn.Module):
    """12 MB of activations per sample, and hardly any parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.first(x).tanh().repeat(1, 48_000)
        for _ in range(4):  # each keeps 3 MB for backward
            wide = wide * wide
        outputs: torch.Tensor = self.last(wide.view(len(x), -1, 8).mean(1))
        return outputs


def _train(attach: Any, model: nn.Module, begin: Callable[[Any], None]) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    run = attach(model, optimizer, data())
    begin(run)
    for _, x, y in run.batches(iterations=6):
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
    run.close()
    return weights(model)


def fails_above_a_size(attach: Any) -> Any:
    model = Measured()

    def begin(run: Any) -> None:
        model.limited = (run.rank, run.size) == (1, 3)

    found = _train(attach, model, begin)
    assert model.failures <= 3, model.failures
    assert not model.limited or model.largest <= FITS
    return found


def _join(group: Path) -> None:
    """Limit the memory of this process to what it has and MEMORY more."""
    (group / "cgroup.procs").write_text(str(os.getpid()))
    gc.collect()  # a forked process gets memory of its own only where it writes, as this does
    in_use = memory_in_use(2 if (group / "memory.max").exists() else 1, group)
    assert in_use is not None
    _set_limit(group, in_use + MEMORY)


def _set_limit(group: Path, size_bytes: int) -> None:
    limit = group / "memory.max"
    (limit if limit.exists() else group / "memory.limit_in_bytes").write_text(str(size_bytes))


def in_a_control_group(attach: Any) -> Any:
    def begin(run: Any) -> None:
        if run.size > 1 and (group := os.environ.get(MEMORY_GROUP)):
            _join(Path(group))

    try:
        return _train(attach, Wide(), begin)
    finally:
        if group := os.environ.get(MEMORY_GROUP):
            _set_limit(Path(group), 1 << 40)
