"""One change of generation: first all workers name their round, then all servers confirm the fence. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from dynamix_ps.membership.messages import Process, Processes


@dataclass(slots=True)
class Change:
    """What has been answered so far."""

    asked: set[Process]
    statuses: dict[Process, int | None] = field(default_factory=dict)
    first_round: int | None = None  # None while workers are asked
    fenced: set[Process] = field(default_factory=set)

    @property
    def asking(self) -> bool:
        return self.first_round is None

    def awaited(self, servers: Collection[Process]) -> set[Process]:
        """Whose answer is missing."""
        return self.asked - self.statuses.keys() if self.asking else set(servers) - self.fenced

    def forget(self, process: Process) -> None:
        """It has left."""
        self.asked.discard(process)
        self.statuses.pop(process, None)

    def rounds(self, founders: Processes) -> dict[Process, int]:
        """First incomplete round of all who have the state of the training. A founder has it from the start."""
        return {
            process: named or 0 for process, named in self.statuses.items() if named is not None or process in founders
        }
