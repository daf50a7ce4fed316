"""Messages of the data plane as far as membership depends on them.

The real data plane sends pieces of gradients; here the sum of a key is a table of its parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from dynamix_ps.membership.messages import Process, Processes
from dynamix_ps.membership.schedule import Schedule, Trailer


@dataclass(frozen=True, slots=True)
class Part:
    """What one worker puts into a round. Written once, and sent again as it was."""

    trailer: Trailer
    gradient: Any


@dataclass(frozen=True, slots=True)
class Push:
    """Worker to server: a key of its part."""

    generation: int
    round: int
    key: int
    expected: int  # parts that make the sum complete
    part: Part


@dataclass(slots=True)
class Sum:
    """A sum in the memory of a server. Answers are sent from this memory: they are read when they arrive."""

    generation: int
    round: int
    expected: int
    parts: dict[Process, Part] = field(default_factory=dict)
    overwritten: bool = False

    @property
    def complete(self) -> bool:
        return len(self.parts) == self.expected


@dataclass(frozen=True, slots=True)
class Answer:
    """Server to all who pushed: the complete sum of a key, with the generation of its pushes."""

    generation: int
    round: int
    key: int
    sum: Sum


@dataclass(frozen=True, slots=True)
class AskState:
    """A worker behind to the donor: the state before `round`, for the decision `generation`."""

    generation: int
    round: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A donor to a worker behind or a newcomer: the state of the training before `round`."""

    generation: int
    round: int
    schedule: Schedule
    state: Any


@dataclass(frozen=True, slots=True)
class Copy:
    """A worker to a newcomer, which is to follow it: the state before `round`."""

    generation: int
    round: int
    schedule: Schedule
    state: Any


@dataclass(frozen=True, slots=True)
class Told:
    """To who follows: what was in the sum of `round`, and the entries that it may have decided on, by version."""

    generation: int
    round: int
    parts: Mapping[Process, Part]
    entries: Mapping[int, Process]


@dataclass(frozen=True, slots=True)
class Caught:
    """From who follows: it has the state after `round`."""

    round: int


@dataclass(frozen=True, slots=True)
class Entered:
    """To who follows: it takes part in `round`.

    Attributes:
        followed: newcomers that follow somebody.
    """

    generation: int
    round: int
    followed: Processes


Following: TypeAlias = Copy | Told | Entered
DataMessage: TypeAlias = Push | Answer | AskState | Snapshot | Following | Caught
