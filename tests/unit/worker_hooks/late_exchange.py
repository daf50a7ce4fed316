"""An exchange of one worker whose sums are late: their places have NaN until somebody waits for them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from dynamix_ps.comm.base import Comm
from worker_hooks.exchange.gradient_exchange import Bucket
from worker_hooks.exchange.trailer import Contribution
from worker_hooks.torch.gradients import TorchExchange
from worker_hooks.torch.late_gradients import LateGradients
from worker_hooks.torch.late_steps import LateSteps
from worker_hooks.torch.step_hooks import StepHooks


class LateSums(Comm):
    """The sum of one worker; `on_wait` gets the name of a buffer before its sum is there."""

    name = "late"
    rank, size = 0, 1
    on_wait: Callable[[str], object]

    def __init__(self) -> None:
        self.on_wait = lambda name: None
        self._under_way: list[tuple[str, torch.Tensor, torch.Tensor]] = []

    def init(self) -> None: ...
    def declare(self, name: str, rounded: int = 0, priority: int = 0) -> None: ...
    def shutdown(self) -> None: ...

    def version(self) -> str:
        return "test"

    def push_pull(self, name: str, buffer: torch.Tensor, begin: int = 0) -> int:
        self._under_way.append((name, buffer, buffer.clone()))
        buffer.fill_(math.nan)
        return len(self._under_way) - 1

    def _wait(self, handle: int, timeout_s: float) -> bool:
        name, buffer, travels = self._under_way[handle]
        self.on_wait(name)
        buffer.copy_(travels)
        return True


class Sums:
    """What steps and readers need of those of a training."""

    leads = True

    def __init__(self, exchange: TorchExchange) -> None:
        self.exchange = exchange

    def arrive(self, bucket: Bucket) -> None:
        self.exchange.arrive(bucket, lambda waited_s: None)

    def complete(self) -> None:
        for bucket in self.exchange.late_buckets():
            self.arrive(bucket)


class LateTraining:
    """`backward` returns when the trailer is there. Attribute `told`: why it waited for all."""

    def __init__(self, model: nn.Module, bucket_bytes: int = 1) -> None:
        self.told: list[str] = []
        self.comm = LateSums()
        self._late = LateGradients(lambda what, why: self.told.append(why))
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.exchange = TorchExchange(trained, [], self.comm, bucket_bytes, "t", late=self._late)
        self.sums: Any = Sums(self.exchange)
        self._late.sums = self.sums

    @property
    def late(self) -> list[Bucket]:
        """Buckets that have not been waited for."""
        return self.exchange.late_buckets()

    @property
    def has_stepped(self) -> bool:
        """Whether a part of a step is made."""
        return self._late.has_stepped

    def hook(self, optimizer: torch.optim.Optimizer, factor: float = 1.0) -> None:
        """Its steps are those of this training from now on, with this factor on the rate."""
        by_buckets = LateSteps(optimizer, self.sums, self._late)
        StepHooks(optimizer, lambda: factor, lambda: None, by_buckets).install()

    def begin_batch(self) -> None:
        """The script gets the next batch."""
        self._late.batch_begun()

    def backward(self, loss: torch.Tensor, factor: float = 1.0) -> None:
        mine = Contribution(4, 1.0, 0.0, math.nan, 0, 0.0, doing=0, weights=(0.0, 0.0))
        self.sums.complete()
        self.exchange.begin(1.0, measure_norm=False)
        loss.backward()
        self.exchange.send_rest(lambda grad_sq: [mine])
        self.exchange.receive(lambda waited_s: None, self.exchange.may_be_late())
        self.exchange.deliver(factor)
