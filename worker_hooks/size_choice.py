"""What chooses the sizes of the workers of this process without an arbitrator: own_size.py, which may be taken away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.data_planes import DATA_PLANES
from dynamix_ps.messages import Plan, WindowRecord
from dynamix_ps.parts import load
from dynamix_ps.run_record.json_lines import Line
from worker_hooks.settings import Settings

_OWN_SIZE = "worker_hooks.planning.own_size"


class SizeChoice(Protocol):
    """As `OwnSize` explains."""

    telling: NDArray[np.floating[Any]]

    def hear(self, line: Line) -> None: ...

    def window_over(self, records: Sequence[WindowRecord], plan: Plan) -> None: ...

    def summed(self, told: NDArray[np.floating[Any]], present: Sequence[int]) -> tuple[int, ...] | None: ...


def told_numbers() -> int:
    """How many numbers each worker tells the others in every sum."""
    return int(load(f"{_OWN_SIZE}:TOLD"))


def size_choice(settings: Settings, here: range, reference_batch: int, data_size: float) -> SizeChoice:
    """For the workers in the slots `here`, in a job without an arbitrator."""
    assert settings.bounds is not None and settings.own_sizes is not None, "only a cluster file can ask for it"
    chosen: SizeChoice = load(f"{_OWN_SIZE}:OwnSize")(
        here,
        settings.bounds,
        settings.config.batch.micro_batches,
        settings.config.lr_rule,
        reference_batch,
        settings.config.seed,
        ring=not DATA_PLANES[settings.config.comm].has_servers,
        data_size=data_size,
        settings=settings.own_sizes,
    )
    return chosen
