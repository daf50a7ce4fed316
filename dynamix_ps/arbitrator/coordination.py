"""The coordinator of membership as a service: streams of roles around the pure coordinator (dynamix_ps/membership).

The coordinator takes in one message after the other. Its records are on disk before any role hears of them, so a
restarted arbitrator knows every member that a role knows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from dynamix_ps.membership.coordinator import Coordinator
from dynamix_ps.membership.generations import Output
from dynamix_ps.membership.journal import Began, Left, Lost, Record
from dynamix_ps.membership.journal_file import JournalFile
from dynamix_ps.membership.messages import FromCoordinator, Join, Process, ToCoordinator
from dynamix_ps.run_record.json_lines import Journal

if TYPE_CHECKING:
    from dynamix_ps.report.prometheus import Exporter

TICK_S = 0.1  # between checks of suspicions and leases while no role sends anything


class _Told(NamedTuple):
    sender: Process
    message: ToCoordinator | None  # None: a sign of life


_Outgoing = asyncio.Queue["FromCoordinator | None"]  # of one stream; None: it is over


class Coordination:
    """The service of one elastic job.

    Args:
        coordinator: has the records of earlier coordinators of this job.
        file: gets the coordinator's records.
        notes: gets lines for users: `lost` processes, the `members` after a change, `short_of_workers` when the job
            waits for workers, and `finishing` when none came and the job ends.
        on_lost: called with the rank of a lost worker.
        on_left: called with the rank of a worker that has left.
        exporter: gets the number of members, and every loss.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        file: JournalFile,
        notes: Journal,
        on_lost: Callable[[int], None],
        on_left: Callable[[int], None],
        exporter: Exporter | None,
    ) -> None:
        self._coordinator, self._file, self._notes = coordinator, file, notes
        self._on_lost, self._on_left, self._exporter = on_lost, on_left, exporter
        self._told: asyncio.Queue[_Told | _Outgoing] = asyncio.Queue()  # a stream where all of it is taken in
        self._streams: dict[Process, _Outgoing] = {}
        self._began_s: float | None = None  # when the present change began
        self._exported = (0, 0)  # workers and servers
        self._shortage = ""  # as last noted

    async def run(self) -> None:
        """Serve until cancelled."""
        members = self._coordinator.members
        there = {process.slot for process in members.workers}
        for process in members.gone:  # lost under earlier arbitrators of this job
            if process.role == "worker" and process.slot not in there:
                self._on_lost(process.slot)
        await self._send(self._coordinator.restart(time.monotonic()))
        coming = asyncio.ensure_future(self._told.get())
        try:
            while True:
                if not (await asyncio.wait({coming}, timeout=TICK_S))[0]:  # `wait_for` may miss that it is cancelled
                    await self._send(self._coordinator.on_time(time.monotonic()))
                    continue
                told, coming = coming.result(), asyncio.ensure_future(self._told.get())
                if isinstance(told, _Told):
                    await self._send(self._take_in(*told))
                else:
                    told.put_nowait(None)
        finally:
            coming.cancel()

    async def membership(
        self, sender: Process, messages: AsyncIterator[ToCoordinator | None]
    ) -> AsyncIterator[FromCoordinator]:
        """The coordinator's messages to `sender`. Unless `sender` is a launcher, it is a member from now on.

        `messages` are those of `sender`; None is a sign of life. The returned stream ends when the coordinator has
        taken all of them in, or when the same process opens another stream. Raises RefusalError.
        """
        outgoing: _Outgoing = asyncio.Queue()
        if (earlier := self._streams.get(sender)) is not None:
            earlier.put_nowait(None)
        self._streams[sender] = outgoing
        if sender.role != "launcher":
            self._told.put_nowait(_Told(sender, Join()))
        listening = asyncio.create_task(self._listen(sender, messages))
        listening.add_done_callback(lambda done: None if done.cancelled() else self._told.put_nowait(outgoing))
        try:
            while (message := await outgoing.get()) is not None:
                yield message
            if listening.done():
                listening.result()
        finally:
            listening.cancel()
            if self._streams.get(sender) is outgoing:
                del self._streams[sender]

    async def _listen(self, sender: Process, messages: AsyncIterator[ToCoordinator | None]) -> None:
        async for message in messages:
            self._told.put_nowait(_Told(sender, message))

    def _take_in(self, sender: Process, message: ToCoordinator | None) -> Output:
        now_s = time.monotonic()
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
        for receiver, message in output.messages:
            if (stream := self._streams.get(receiver)) is not None:
                stream.put_nowait(message)
        self._tell_members()

    def _tell(self, record: Record) -> None:
        match record:
            case Began():
                self._began_s = self._began_s or time.monotonic()
            case Lost(process, reason):
                role, slot, incarnation = process.role, process.slot, process.incarnation
                self._notes.write("lost", role=role, slot=slot, incarnation=incarnation, reason=reason)
                if self._exporter is not None:
                    self._exporter.lost(role)
                if role == "worker":
                    self._on_lost(slot)
            case Left(Process("worker", slot)):
                self._on_left(slot)

    def _tell_shortage(self) -> None:
        """Note that too few workers are left, and later that no worker has joined in time."""
        coordinator, settings = self._coordinator, self._coordinator.settings
        short = "short_of_workers" if coordinator.short_of_workers else ""
        shortage = short if coordinator.finish is None else "finishing"
        if shortage and shortage != self._shortage:
            there = len(coordinator.members.workers)
            self._notes.write(shortage, workers=there, min_workers=settings.min_workers, wait_s=settings.join_wait_s)
        self._shortage = shortage

    def _tell_members(self) -> None:
        """Export how many there are, and note who goes on after a change."""
        members, workers = self._coordinator.members, self._coordinator.training
        if self._coordinator.change is not None:
            return
        there = len(workers), len(members.servers)
        if self._exporter is not None and there != self._exported:
            self._exported = there
            self._exporter.members(*there)
        if self._began_s is not None and not members.finished:
            took_s, self._began_s = time.monotonic() - self._began_s, None
            self._notes.write(
                "members",
                generation=members.generation,
                round=members.first_round,
                workers=_slots(workers),
                servers=_slots(members.servers),
                took_s=took_s,
            )


def _slots(processes: Iterable[Process]) -> list[int]:
    return sorted(process.slot for process in processes)
