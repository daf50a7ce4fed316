"""What workers of a ring say to each other, in the model of membership."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dynamix_ps.membership.data_messages import Part, Snapshot
from dynamix_ps.membership.messages import Process, Processes

Sums = Mapping[int, Mapping[Process, Part] | None]  # by key


@dataclass(frozen=True, slots=True)
class Ring:
    """Its name. Only those who give it the same one meet."""

    generation: int
    first_round: int
    members: Processes


@dataclass(frozen=True, slots=True)
class Named:
    """To all members of a ring: here I am, and this is the first round that I have not completed."""

    ring: Ring
    round: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A key of a part, on its way around a ring."""

    ring: Ring
    round: int
    key: int
    part: Part


@dataclass(frozen=True, slots=True)
class Kept:
    """The lowest one at T to those that are behind: the sums of the round before."""

    ring: Ring
    sums: Sums


@dataclass(frozen=True, slots=True)
class Finished:
    """To all members of a ring: I need nothing of it any more."""

    ring: Ring


@dataclass(frozen=True, slots=True)
class Handed:
    """The one that leads to a newcomer: the state before a round, and who makes this round."""

    snapshot: Snapshot
    members: Processes
