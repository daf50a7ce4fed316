"""One change of generation: all workers name their round. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from dynamix_ps.membership.messages import Process, Processes


@dataclass(slots=True)
class Change:
    """What has been answered so far."""

    asked: set[Process]
    statuses: dict[Process, int | None] = field(default_factory=dict)

    @property
    def awaited(self) -> set[Process]:
        """Whose answer is missing."""
        return self.asked - self.statuses.keys()

    def forget(self, process: Process) -> None:
        """It has left."""
        self.asked.discard(process)
        self.statuses.pop(process, None)

    def rounds(self, founders: Processes) -> dict[Process, int]:
        """First incomplete round of all who have the state of the training. A founder has it from the start."""
        return {
            process: named or 0 for process, named in self.statuses.items() if named is not None or process in founders
        }
