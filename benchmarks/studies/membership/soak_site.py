"""An event of the soak, and the place where events happen."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.studies.membership.soak_place import HOME
from benchmarks.testbed.bed import Bed
from benchmarks.testbed.relay import Relay
from dynamix_ps.run_record.run_folder import RunFolder

COORDINATOR = "coordinator"


@dataclass(slots=True)
class Event:
    """One event.

    Attributes:
        number: from 0 on.
        kind: one of KINDS.
        role: to which it happens, as processes are named.
        pid: of its process; 0: it has none.
        incarnation: of that process; empty where it is no worker or server.
        at_s: when, on the monotonic clock.
        lasts_s: how long at least.
        strength: from 0 to 1, of what is more or less.
        workers: that were there before.
        servers: the same.
        iteration: the newest sum before it; afterwards that in which it shows.
        effect_s: from the event until the first worker has completed this sum; None: it has none yet.
        healed_s: when it was over, on the same clock; None: it is not.
        pause_s: the longest time without a step of a worker that was there before and after.
    """

    number: int
    kind: str
    role: str
    pid: int
    at_s: float
    lasts_s: float
    strength: float
    workers: int
    servers: int
    iteration: int
    effect_s: float | None = None
    healed_s: float | None = None
    incarnation: str = ""
    pause_s: float = 0.0

    @property
    def slot(self) -> int:
        """The number of the worker or server; 0 of others."""
        return int(self.role.rpartition("-")[2]) if self.role[-1:].isdigit() else 0

    @property
    def host(self) -> str:
        """Where it happens."""
        return self.role if self.role[-1:].isdigit() else HOME


@dataclass(slots=True)
class Site:
    """What events change: the run, and the hosts of its roles.

    Attributes:
        folder: for all that the job writes.
        refused: numbers of events that were asked for in vain so far.
        filler: the file that fills the disk of the run.
        watch: the process that starts the coordinator, which can write nothing for now.
        taker: the process that takes the memory of a server.
        flapping: what lets the links of hosts go and come.
        relays: of hosts whose packets are held, or come twice.
    """

    folder: Path
    run: RunFolder
    bed: Bed
    refused: set[int] = field(default_factory=set)
    filler: Path | None = None
    watch: psutil.Process | None = None
    taker: subprocess.Popen[bytes] | None = None
    flapping: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    relays: dict[str, Relay] = field(default_factory=dict)
