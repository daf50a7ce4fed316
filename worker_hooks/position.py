"""Where a training is, besides its weights."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from dynamix_ps.messages import Plan
from worker_hooks.learning_rate import Noise
from worker_hooks.sampler import Cursor


@dataclass(frozen=True, slots=True)
class Position:
    """Where a training is, besides its weights: all that is needed to go on."""

    iteration: int
    cursor: Cursor
    plan: Plan
    noise: Noise = (0.0, 0.0)  # what the learning rate follows
    largest_lr: float = 0.0  # of the script's own until now

    def pack(self) -> dict[str, Any]:
        """As plain values, fit for a checkpoint."""
        return dataclasses.asdict(self)

    @classmethod
    def unpack(cls, packed: dict[str, Any]) -> Position:
        plan = packed["plan"]
        variance, signal = packed.get("noise", (0.0, 0.0))
        place, held = Cursor(**packed["cursor"]), Plan(plan["version"], tuple(plan["batch_sizes"]))
        return cls(packed["iteration"], place, held, (variance, signal), packed.get("largest_lr", 0.0))
