"""A job that another launcher has started, as each of its processes knows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dynamix_ps.config.role_hosts import HERE
from dynamix_ps.other_launchers.meeting import JobProcess
from dynamix_ps.other_launchers.place import MeetingPlace


@dataclass(frozen=True, slots=True)
class StartedJob:
    """Attributes:
    place: which process of the job this is.
    processes: what each has said of itself, in the order of ranks.
    arbitrator: host and port.
    """

    place: MeetingPlace
    processes: Sequence[JobProcess]
    arbitrator: tuple[str, int]

    @property
    def machines(self) -> dict[str, list[int]]:
        """The ranks on each machine. The first one is that of rank 0."""
        found: dict[str, list[int]] = {}
        for rank, process in enumerate(self.processes):
            found.setdefault(process.machine, []).append(rank)
        return found

    @property
    def host_here(self) -> str:
        """The machine of this process, as the configuration calls it."""
        machines = list(self.machines)
        return host_name(machines.index(self.processes[self.place.rank].machine), len(machines))

    @property
    def ranks_here(self) -> list[int]:
        """The ranks on the machine of this process, in rising order; the first one starts what is there once."""
        return self.machines[self.processes[self.place.rank].machine]

    @property
    def pids_here(self) -> dict[int, int]:
        """The number of each process on this machine, by rank."""
        return {rank: self.processes[rank].pid for rank in self.ranks_here}


def host_name(index: int, machines: int) -> str:
    """What the configuration calls a machine."""
    return f"host-{index}" if machines > 1 else HERE
