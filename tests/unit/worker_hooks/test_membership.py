"""The shells of workers and servers: streams to the coordinator, threads, time limits, and the end.

What they decide is tested without them (tests/unit/membership, tests/models/membership).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dynamix_ps.arbitrator.coordination import Coordination
from dynamix_ps.comm.plane import PeerFailure
from dynamix_ps.config.schema import Timeouts
from dynamix_ps.errors import PeerLostError
from dynamix_ps.membership.coordinator import Coordinator
from dynamix_ps.membership.effects import suspicion
from dynamix_ps.membership.generations import MembershipSettings
from dynamix_ps.membership.journal import Record
from dynamix_ps.membership.known_members import Planned
from dynamix_ps.membership.messages import (
    AskLeave,
    Enter,
    Entry,
    Freeze,
    Leave,
    LeaveAsked,
    MayPush,
    Process,
    Ready,
    Resume,
    Suspect,
)
from dynamix_ps.rpc.access import ArbitratorAccess
from dynamix_ps.rpc.member import Member
from dynamix_ps.rpc.server import RpcServer
from server_hooks.membership import ServerMember
from tests.launching import wait_for
from tests.unit.arbitrator.service_bench import Bench, Scripted
from tests.unit.membership.sums import NotedSums
from worker_hooks.membership import member as member_module
from worker_hooks.membership.member import WorkerMember

pytestmark = pytest.mark.timeout(60)

RUN, TOKEN = "run-1", "secret"
PATIENCE_S = 30.0
NEVER_S = 3600.0
NOWHERE = ArbitratorAccess("127.0.0.1:1", RUN, TOKEN, Timeouts())
EVERYBODY = frozenset(range(4))


class Records(list[Record]):
    """What would be on disk."""

    def append(self, records: Iterable[Record]) -> None:  # type: ignore[override]  # of all that come at once
        self.extend(records)


class Notes:
    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.changed = threading.Condition()

    def write(self, kind: str, **fields: Any) -> None:
        with self.changed:
            self.lines.append({"kind": kind, **fields})
            self.changed.notify_all()

    def wait_for(self, kind: str, **fields: Any) -> dict[str, Any]:
        def is_it(line: dict[str, Any]) -> bool:
            return line["kind"] == kind and fields.items() <= line.items()

        with self.changed:
            assert self.changed.wait_for(lambda: any(map(is_it, self.lines)), PATIENCE_S), self.lines
            return next(filter(is_it, self.lines))


class Shown(list[tuple[int, int] | str]):
    """What the endpoint for Prometheus would have, in order."""

    def members(self, workers: int, servers: int) -> None:
        self.append((workers, servers))

    def lost(self, role: str) -> None:
        self.append(role)


class Control:
    """A coordinator in a loop of its own, which can be started again at the same port."""

    def __init__(self, folder: Path, settings: MembershipSettings) -> None:
        self.settings, self.records, self.notes = settings, Records(), Notes()
        self.lost: list[int] = []
        self.left: list[int] = []
        self.shown = Shown()
        self._folder, self.port = folder, 0
        self.start()

    def start(self) -> None:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)))
        self._thread.start()
        assert ready.wait(PATIENCE_S)

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        coordinator = Coordinator(self.settings, list(self.records))
        tell = self.lost.append, self.left.append
        coordination = Coordination(coordinator, self.records, self.notes, *tell, self.shown)
        arbitrator = Bench(self._folder, Scripted()).arbitrator
        server = RpcServer(arbitrator, RUN, TOKEN, self.settings.workers, coordinator=coordination)
        self.port = await server.start(f"127.0.0.1:{self.port}")
        running = asyncio.create_task(coordination.run())
        ready.set()
        await self._stop.wait()
        await server.stop(0)
        running.cancel()
        await asyncio.wait((running,))

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)

    def access(self) -> ArbitratorAccess:
        return ArbitratorAccess(
            f"127.0.0.1:{self.port}", RUN, TOKEN, Timeouts(rpc_s=2.0, lease_s=min(self.settings.lease_s, 6.0))
        )


class Plane(NotedSums):
    """A data plane that notes what it is told, and of which a test says what has happened to it."""

    address = ""

    def __init__(self, at: int = 0) -> None:
        super().__init__(at)
        self.losses: queue.SimpleQueue[PeerFailure] = queue.SimpleQueue()
        self.missed: frozenset[int] = frozenset()  # slots of workers that do not answer
        self.answering = True  # servers

    def next_loss(self, timeout_s: float) -> PeerFailure | None:
        try:
            return self.losses.get(timeout=timeout_s) if timeout_s else self.losses.get_nowait()
        except queue.Empty:
            return None

    def silent(self, quiet_s: float) -> frozenset[int]:
        return self.missed

    def silent_servers(self, quiet_s: float) -> frozenset[int]:
        return frozenset()

    def answers(self, server: int, limit_s: float) -> bool:
        return self.answering

    def depart(self, over: Callable[[], bool]) -> bool:
        return True

    def hears(self, told: Any) -> None:
        wait_for(lambda: told in self.told, f"{told}", PATIENCE_S)


def worker(slot: int, incarnation: str = "first") -> Process:
    return Process("worker", slot, incarnation)


def server(slot: int, incarnation: str = "first") -> Process:
    return Process("server", slot, incarnation)


class Job:
    """The members of a job, their planes, and what their trainings are told."""

    def __init__(self, control: Control, workers: int, servers: int) -> None:
        self.control, self._founders = control, workers
        self.planes: dict[Process, Plane] = {}
        self.members: dict[Process, Any] = {}
        self.words: dict[Process, queue.SimpleQueue[Any]] = {}
        for slot in range(servers):
            self.serve(slot)
        for slot in range(workers):
            self.work(slot)

    def serve(self, slot: int, incarnation: str = "first") -> None:
        process = server(slot, incarnation)
        plane, words = self._begin(process)
        self.members[process] = ServerMember(self.control.access(), process, plane, words.put)
        self.members[process].start()

    def work(self, slot: int) -> None:
        process = worker(slot)
        plane, words = self._begin(process)
        self.members[process] = WorkerMember(self.control.access(), process, plane, self._founders, words.put)
        self.members[process].start()

    def _begin(self, process: Process) -> tuple[Plane, queue.SimpleQueue[Any]]:
        self.planes[process], self.words[process] = Plane(), queue.SimpleQueue()
        return self.planes[process], self.words[process]

    def told(self, process: Process) -> Any:
        """The next word for its training, or why it is to end."""
        return self.words[process].get(timeout=PATIENCE_S)

    def lose(self, process: Process) -> None:
        """Its connections close: those of servers to all others, those of workers to servers."""
        for other, plane in self.planes.items():
            if other != process and "server" in (other.role, process.role):
                plane.losses.put(PeerFailure(process.role, process.slot))

    def close(self) -> None:
        threads = [threading.Thread(target=member.close) for member in self.members.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)

    def lost(self) -> list[tuple[str, int]]:
        return [(line["role"], line["slot"]) for line in self.control.notes.lines if line["kind"] == "lost"]


@contextlib.contextmanager
def running(folder: Path, workers: int = 4, servers: int = 2, **limits: Any) -> Iterator[Job]:
    """A job whose founders have all met, and are at round 5."""
    control = Control(folder, MembershipSettings(workers, servers, **{"confirm_s": 30.0, "lease_s": 20.0, **limits}))
    job = Job(control, workers, servers)
    for plane in (job.planes[worker(slot)] for slot in range(workers)):
        plane.hears(("resume", 1, 0, workers, []))
        plane.at = 5
    try:
        yield job
    finally:
        job.close()
        control.stop()


@contextlib.contextmanager
def launcher(job: Job) -> Iterator[Member]:
    member = Member(job.control.access(), Process("launcher", 0, "launcher"))
    member.start()
    try:
        yield member
    finally:
        member.close()


def test_all_others_hear_of_a_loss_also_from_a_coordinator_that_was_away(tmp_path: Path) -> None:
    with running(tmp_path) as job:
        job.planes[worker(1)].at = 4
        job.lose(worker(2))  # two servers see it: no third word is needed
        for slot in (0, 1, 3):
            job.planes[worker(slot)].hears(("resume", 2, 5, 3, []))
        job.control.notes.wait_for("members", workers=[0, 1, 3], round=5)
        assert (job.lost(), job.control.lost) == ([("worker", 2)], [2])
        assert job.control.shown[-3:] == [(4, 2), "worker", (3, 2)]
        job.control.stop()
        job.planes[worker(1)].at = 5
        job.lose(worker(1))
        job.control.start()
        job.control.notes.wait_for("members", workers=[0, 3])
        assert job.control.lost == [2, 2, 1], "the second arbitrator is told of the loss before it, too"
        assert all(job.words[worker(slot)].empty() for slot in (0, 3)), "they stay"
        job.close()
        wait_for(lambda: sorted(job.control.left) == [0, 3], "both to have said their last word", PATIENCE_S)


def test_a_request_to_leave_arrives_over_later_connections_and_counts_once(tmp_path: Path) -> None:
    with running(tmp_path) as job, launcher(job) as asks:
        asks.tell(AskLeave(worker(7), 1), keep=True)  # there is none
        for request, slot in enumerate((2, 1), 2):
            job.control.stop()  # so nobody has a connection
            asks.tell(AskLeave(worker(slot), request), keep=True)
            job.control.start()
            assert job.told(worker(slot)) == LeaveAsked(request)
        asks.tell(AskLeave(worker(2), 4), keep=True)  # it was refused, and is asked once more
        assert job.told(worker(2)) == LeaveAsked(4)
        assert all(words.empty() for words in job.words.values())


def test_a_server_that_counts_as_lost_hears_of_it_at_once_or_when_it_is_back(tmp_path: Path) -> None:
    """The word of the launcher is enough, and names the one that is there: said by the slot alone, it is said once."""
    with running(tmp_path, servers=3) as job, launcher(job) as says:
        says.follow(suspicion(server(2, "")))
        assert job.told(server(2)) == "server 2 (first) counts as lost: it has exited"
        job.members[server(2)].close()
        job.serve(2)
        assert job.told(server(2)) == "server 2 (first) was replaced in generation 2"
        job.members[server(2)].close()
        job.serve(2, "second")
        member = job.members[worker(0)]
        wait_for(lambda: server(2, "second") in member.offered().values(), "the second one to be offered")
        job.control.stop()
        job.control.start()
        says.follow(suspicion(worker(3)))
        job.control.notes.wait_for("members", workers=[0, 1, 2])
        assert job.lost() == [("server", 2), ("worker", 3)]


def test_who_is_silent_everywhere_is_lost_after_its_lease_and_hears_it_when_it_is_back(tmp_path: Path) -> None:
    """Its connections stay open."""
    with running(tmp_path, workers=3, lease_s=1.0) as job:
        stream = job.members[worker(2)]._member
        stream._access = dataclasses.replace(stream._access, timeouts=Timeouts(rpc_s=2.0, lease_s=NEVER_S))
        for slot in (0, 1):
            job.planes[server(slot)].missed = frozenset({2})
        assert job.told(worker(2)).reason == "worker 2 (first) counts as lost: its lease ran out while others waited"
        job.planes[worker(0)].hears(("resume", 2, 5, 2, []))
        assert job.lost() == [("worker", 2)]


# Without a coordinator.


def member_of(process: Process, plane: Plane, late: bool = False) -> WorkerMember:
    return WorkerMember(NOWHERE, process, plane, 3, pytest.fail, late)


def test_a_server_names_the_worker_whose_connection_it_was() -> None:
    """A newcomer in the place of that worker may be told of before the closed connection is looked at."""
    plane, lost, there = Plane(), worker(2), worker(2, "second")
    member = ServerMember(NOWHERE, server(0), plane)
    member._act(MayPush(frozenset({lost})))
    plane.losses.put(PeerFailure("worker", 2))
    member._act(MayPush(frozenset({there})))
    assert member._member._kept == [Suspect(lost)]


def test_a_worker_votes_for_a_server_that_answers_and_names_the_one_before_it_as_lost() -> None:
    """It may have answered before the closed connection is looked at."""
    plane, lost, there = Plane(), server(0), server(0, "second")
    member = member_of(worker(0), plane)
    founding = Resume(1, 0, frozenset(), founders=frozenset({worker(0), lost}))
    for message in (Freeze(1), founding, Enter(Entry(1, there))):
        member._act(message)
    plane.answering = False
    member._look()
    assert (member.offered(), member._member._kept) == ({}, [])
    plane.losses.put(PeerFailure("server", 0))
    plane.answering = True
    member._look()
    assert (member.offered(), member._member._kept) == ({1: there}, [Suspect(lost)])


def test_a_newcomer_begins_when_it_has_heard_of_the_generation_that_the_others_are_in() -> None:
    """They may give it the state sooner than the coordinator tells it."""
    plane = Plane()
    member = member_of(worker(2), plane, late=True)
    began = threading.Thread(target=member.begin, args=(Planned([worker(2)], [], 3), 7))
    began.start()
    wait_for(lambda: member._happened._waiters or not began.is_alive(), "it to wait")  # type: ignore[attr-defined]
    member._act(Resume(3, 5, frozenset()))
    began.join(PATIENCE_S)
    assert plane.told[-1] == ("enter", 3, 7, 1, [])
    assert member._member._kept == [Ready()], "the coordinator must know, also if a connection is lost"


def test_a_newcomer_does_not_begin_without_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    plane, planned = Plane(), Planned([worker(2)], [server(0)], 2)
    member = member_of(worker(2), plane, late=True)
    member._act(Resume(3, 5, frozenset()))
    with pytest.raises(PeerLostError, match="workers were lost while"):
        member.begin(planned, 7)
    plane.answering = False
    monkeypatch.setattr(member_module, "_MEET_S", 0.0)
    for wait in (lambda one: one.begin(planned, 7), lambda one: one.take_in(planned.servers)):
        with pytest.raises(PeerLostError, match=r"server 0 \(first\) has not answered"):
            wait(member_of(worker(2), plane, late=True))


@pytest.mark.parametrize(("late", "last"), [(True, None), (False, Leave())], ids=["it was in no round", "it was"])
def test_who_ends_waits_for_the_others_if_it_was_in_a_round_and_says_so_once(
    late: bool, last: Leave | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane, told, waited = Plane(), list[Any](), list[bool]()
    monkeypatch.setattr(plane, "depart", lambda over: waited.append(over()) or True)  # type: ignore[func-returns-value]
    member = member_of(worker(2), plane, late)
    monkeypatch.setattr(member._member, "close", told.append)
    monkeypatch.setattr(member._watch, "close", lambda: None)
    member.close()
    member.close()
    assert (told, waited) == ([last], [] if late else [False])
