"""What follows from an event in a worker or server, beside what its sums are told. It is to be done in order."""

from __future__ import annotations

from dataclasses import dataclass

from dynamix_ps.membership.messages import Process, Suspect, ToCoordinator


@dataclass(frozen=True, slots=True)
class Tell:
    """A message to the coordinator. `keep`: also on every later connection."""

    message: ToCoordinator
    keep: bool = False


@dataclass(frozen=True, slots=True)
class GoAway:
    """The others go on without this process: it ends."""

    reason: str


def suspicion(process: Process) -> Tell:
    """`process` cannot be reached. By its slot alone it is named once: later another one may be there."""
    return Tell(Suspect(process), keep=bool(process.incarnation))
