"""The few numbers of the actor. All of them are chosen by us; defaults are those of the cluster file."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from dynamix_ps.config.schema import Stigmergy

CALM = math.log(1.03)  # the largest move without an alarm
_DEFAULT = Stigmergy()


@dataclass(frozen=True, slots=True)
class StigmergySettings:
    """How strong traces are, and what part of each is gone one window later."""

    evaporation: float = _DEFAULT.evaporation  # of all but the alarm; this part of the newest value is laid
    alarm: float = _DEFAULT.alarm  # what a worker lays when its speed or its link has changed: log of the largest move
    calming: float = _DEFAULT.calming  # evaporation of the alarm
    crowding: float = _DEFAULT.crowding  # a move shrinks to 1 / (1 + crowding) of it if all workers would move
    dead_band: float = 0.02  # log; a worker that would move less stays, so calm moves must exceed it

    def __post_init__(self) -> None:
        """Raises ValueError for values with which traces never fade, or moves have no end."""
        for name in ("evaporation", "calming"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected a part above 0, up to 1")
        for name in ("alarm", "crowding"):
            if not 0 <= getattr(self, name) <= 100:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected a number from 0 to 100")
        if not 0 <= self.dead_band < CALM:
            raise ValueError(
                f"dead_band is {self.dead_band!r}, expected a number from 0 to below {CALM:.4f}, the largest move "
                "without an alarm: otherwise nobody would ever make one"
            )

    @classmethod
    def of(cls, section: Stigmergy) -> StigmergySettings:
        """What section `policy.stigmergy` of a cluster file says."""
        return cls(**section.model_dump())


NAMES = tuple(field.name for field in fields(StigmergySettings))
