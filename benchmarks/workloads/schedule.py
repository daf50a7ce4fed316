"""The learning rate over a training: constant, or with a warm-up and half a cosine."""

from __future__ import annotations

import math
from typing import Literal, Protocol, get_args

ScheduleName = Literal["constant", "cosine"]
SCHEDULES: tuple[ScheduleName, ...] = get_args(ScheduleName)
WARM_UP = 0.05  # part of the training
FLOOR = 0.1  # of the learning rate, where the warm-up begins and the cosine ends


class Progressing(Protocol):
    """A run of any framework."""

    @property
    def progress(self) -> float: ...


def scheduled(name: ScheduleName, lr: float, run: Progressing) -> float:
    """The learning rate of the next step.

    It depends on the part of the training that is done, so it is the same after the same samples whatever batch sizes
    are. The cosine asks `run.progress`, which needs a training whose end is known.
    """
    return lr if name == "constant" else lr * cosine(run.progress)


def cosine(progress: float) -> float:
    """Factor on the learning rate: from FLOOR to 1 in a straight line, then half a cosine back to FLOOR."""
    if progress < WARM_UP:
        return FLOOR + (1 - FLOOR) * progress / WARM_UP
    return FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * (progress - WARM_UP) / (1 - WARM_UP))) / 2
