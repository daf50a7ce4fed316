"""The coordinator of membership as a service: streams of roles around the pure coordinator (dynamix_ps/membership).

The coordinator takes in one message after the other. Its records are on disk before any role hears of them, so a
restarted arbitrator knows every member that a role knows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from dynamix_ps.membership.coordinator import Coordinator
from dynamix_ps.membership.generations import Output
from dynamix_ps.membership.journal import Began, Left, Lost, Record
from dynamix_ps.membership.messages import (
    AskLeave,
    Broken,
    Fenced,
    FromCoordinator,
    Join,
    Leave,
    Process,
    Ready,
    Status,
    Suspect,
    ToCoordinator,
    Waiting,
)
from dynamix_ps.rpc.refusals import MalformedMessageError

TICK_S = 0.1  # between checks of suspicions and leases while no role sends anything
_MAY_TELL: Mapping[str, tuple[type, ...]] = {
    "worker": (Join, Suspect, Waiting, Broken, Status, Ready, Leave),
    "server": (Join, Suspect, Waiting, Fenced),
    "launcher": (Suspect, AskLeave),
}


class RecordFile(Protocol):
    """Where records go."""

    def append(self, records: Sequence[Record]) -> None:
        """Write them, and return when they are on disk."""
        ...


class Notes(Protocol):
    """The part of the arbitrator's journal that is used here."""

    def write(self, kind: str, **fields: Any) -> None: ...


class Gauges(Protocol):
    """The part of the arbitrator's endpoint for Prometheus that is used here."""

    def members(self, workers: int, servers: int) -> None: ...

    def lost(self, role: str) -> None: ...


class _Told(NamedTuple):
    sender: Process
    message: ToCoordinator | None  # None: a sign of life


class Coordination:
    """The service of one elastic job.

    Args:
        coordinator: has the records of earlier coordinators of this job.
        file: gets the coordinator's records.
        notes: gets lines for users: `lost` processes, the `members` after a change, `short_of_workers` when the job
            waits for workers, and `finishing` when none came and the job ends.
        on_lost: called with the rank of a lost worker.
        on_left: called with the rank of a worker that has left.
        gauges: get the number of members, and every loss; None: there is no endpoint.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        file: RecordFile,
        notes: Notes,
        on_lost: Callable[[int], None],
        on_left: Callable[[int], None],
        gauges: Gauges | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._coordinator, self._file, self._notes = coordinator, file, notes
        self._on_lost, self._on_left, self._gauges, self._clock = on_lost, on_left, gauges, clock
        self._shown = (0, 0)  # workers and servers, as the gauges have them
        self._told: asyncio.Queue[_Told] = asyncio.Queue()
        self._streams: dict[Process, asyncio.Queue[FromCoordinator | None]] = {}  # None: the stream is over
        self._began_s: float | None = None  # when the present change began
        self._short = self._finishing = False  # as last noted

    async def run(self) -> None:
        """Serve until cancelled."""
        members = self._coordinator.members
        there = {process.slot for process in members.workers}
        for process in members.gone:  # lost under earlier arbitrators of this job
            if process.role == "worker" and process.slot not in there:
                self._on_lost(process.slot)
        await self._send(self._coordinator.restart(self._clock()))
        while True:
            try:
                sender, message = await asyncio.wait_for(self._told.get(), TICK_S)
            except asyncio.TimeoutError:
                await self._send(self._coordinator.on_time(self._clock()))
                continue
            await self._send(self._take_in(sender, message))
            if isinstance(message, Leave) and (stream := self._streams.get(sender)) is not None:
                stream.put_nowait(None)

    async def membership(
        self, sender: Process, messages: AsyncIterator[ToCoordinator | None]
    ) -> AsyncIterator[FromCoordinator]:
        """The coordinator's messages to `sender`. Unless `sender` is a launcher, it is a member from now on.

        `messages` are those of `sender`; None is a sign of life. The returned stream ends when `messages` end, or when
        the same process opens another stream. After a `Leave` it ends once the coordinator has taken the `Leave` in.
        Raises RefusalError.
        """
        outgoing: asyncio.Queue[FromCoordinator | None] = asyncio.Queue()
        if (earlier := self._streams.get(sender)) is not None:
            earlier.put_nowait(None)
        self._streams[sender] = outgoing
        if sender.role != "launcher":
            self._told.put_nowait(_Told(sender, Join()))
        listening = asyncio.create_task(self._listen(sender, messages))
        listening.add_done_callback(lambda done: None if _has_left(done) else outgoing.put_nowait(None))
        try:
            while (message := await outgoing.get()) is not None:
                yield message
            if listening.done():
                listening.result()
        finally:
            listening.cancel()
            if self._streams.get(sender) is outgoing:
                del self._streams[sender]

    async def _listen(self, sender: Process, messages: AsyncIterator[ToCoordinator | None]) -> bool:
        """Queue the messages of a role until they end. Returns whether the role has left."""
        left = False
        async for message in messages:
            if message is not None and not isinstance(message, _MAY_TELL[sender.role]):
                told, expected = type(message).__name__, ", ".join(kind.__name__ for kind in _MAY_TELL[sender.role])
                raise MalformedMessageError(f"kind: got {told} of a {sender.role}, expected one of {expected}")
            left |= isinstance(message, Leave)
            self._told.put_nowait(_Told(sender, message))
        return left

    def _take_in(self, sender: Process, message: ToCoordinator | None) -> Output:
        now_s = self._clock()
        if message is None:
            self._coordinator.heard(sender, now_s)
            return self._coordinator.on_time(now_s)
        return self._coordinator.on_message(sender, message, now_s)

    async def _send(self, output: Output) -> None:
        """Write the records to disk, then send the messages."""
        if output.records:
            await asyncio.to_thread(self._file.append, output.records)
        for record in output.records:
            self._tell(record)
        self._tell_shortage()
        self._show_members()
        for receiver, message in output.messages:
            if (stream := self._streams.get(receiver)) is not None:
                stream.put_nowait(message)
        if self._began_s is not None and self._coordinator.change is None and not self._coordinator.members.finished:
            members = self._coordinator.members
            there = {"workers": _slots(self._coordinator.training), "servers": _slots(members.servers)}
            took_s, self._began_s = self._clock() - self._began_s, None
            self._notes.write(
                "members", generation=members.generation, round=members.first_round, **there, took_s=took_s
            )

    def _show_members(self) -> None:
        coordinator = self._coordinator
        if self._gauges is None or coordinator.change is not None:
            return
        there = len(coordinator.training), len(coordinator.members.servers)
        if there != self._shown:
            self._shown = there
            self._gauges.members(*there)

    def _tell_shortage(self) -> None:
        """Note that too few workers are left, and later that no worker has joined in time."""
        coordinator, settings = self._coordinator, self._coordinator.settings
        short, finishing = coordinator.short_of_workers, coordinator.finish is not None
        too_few = {"workers": len(coordinator.members.workers), "min_workers": settings.min_workers}
        if finishing and not self._finishing:
            self._notes.write("finishing", **too_few)
        elif short and not self._short:
            self._notes.write("short_of_workers", **too_few, wait_s=settings.join_wait_s)
        self._short, self._finishing = short, finishing

    def _tell(self, record: Record) -> None:
        if isinstance(record, Began):
            self._began_s = self._began_s or self._clock()
        elif isinstance(record, Lost):
            process = record.process
            who = {"role": process.role, "slot": process.slot, "incarnation": process.incarnation}
            self._notes.write("lost", **who, reason=record.reason)
            if self._gauges is not None:
                self._gauges.lost(process.role)
            if process.role == "worker":
                self._on_lost(process.slot)
        elif isinstance(record, Left) and record.process.role == "worker":
            self._on_left(record.process.slot)


def _slots(processes: Iterable[Process]) -> list[int]:
    return sorted(process.slot for process in processes)


def _has_left(listening: asyncio.Task[bool]) -> bool:
    return not listening.cancelled() and listening.exception() is None and listening.result()
