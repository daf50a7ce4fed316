"""The shells of workers and servers: streams to the coordinator, threads, time limits, and the end.

What they decide is tested without them (tests/unit/membership, tests/models/membership).
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

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

RUN, TOKEN, PATIENCE_S = "run-1", "secret", 30.0
WORKERS, SERVERS = 4, 2
NOWHERE = ArbitratorAccess("127.0.0.1:1", RUN, TOKEN, Timeouts())


def worker(slot: int, incarnation: str = "first") -> Process:
    return Process("worker", slot, incarnation)


def server(slot: int, incarnation: str = "first") -> Process:
    return Process("server", slot, incarnation)


class Notes(list[dict[str, Any]]):
    """Lines for users."""

    def write(self, kind: str, **fields: Any) -> None:
        self.append({"kind": kind, **fields})

    def wait_for(self, **fields: Any) -> None:
        wait_for(lambda: any(fields.items() <= line.items() for line in self), f"{fields}", PATIENCE_S)


class Control:
    """A coordinator in a loop of its own, which can be started again at the same port."""

    def __init__(self, folder: Path) -> None:
        self.notes, self.gauges = Notes(), Mock()
        self.lost, self.left = list[int](), list[int]()
        self._records = list[Record]()  # what would be on disk
        self._folder, self.port = folder, 0
        self.start()

    def start(self) -> None:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        assert ready.wait(PATIENCE_S)

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        settings = MembershipSettings(WORKERS, SERVERS, confirm_s=PATIENCE_S, lease_s=PATIENCE_S)
        coordinator = Coordinator(settings, list(self._records))
        file, tell = Mock(append=self._records.extend), (self.lost.append, self.left.append)
        coordination = Coordination(coordinator, file, self.notes, *tell, self.gauges)
        arbitrator = Bench(self._folder, Scripted()).arbitrator
        rpc = RpcServer(arbitrator, RUN, TOKEN, WORKERS, coordinator=coordination)
        self.port = await rpc.start(f"127.0.0.1:{self.port}")
        running = asyncio.create_task(coordination.run())
        ready.set()
        await self._stop.wait()
        await rpc.stop(0)
        running.cancel()
        await asyncio.wait((running,))

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)


class Plane(NotedSums):
    """A data plane that notes what it is told, and of which a test says what has happened to it."""

    address = ""

    def __init__(self) -> None:
        super().__init__(at=0)
        self.losses: queue.SimpleQueue[PeerFailure] = queue.SimpleQueue()
        self.answering = True  # servers

    def next_loss(self, timeout_s: float) -> PeerFailure | None:
        with contextlib.suppress(queue.Empty):
            return self.losses.get(timeout_s > 0, timeout_s)
        return None

    def silent(self, quiet_s: float) -> frozenset[int]:
        return frozenset()

    silent_servers = silent

    def answers(self, server: int, limit_s: float) -> bool:
        return self.answering

    def depart(self, over: Callable[[], bool]) -> bool:
        return True

    def hears(self, told: Any) -> None:
        wait_for(lambda: told in self.told, f"{told}", PATIENCE_S)


class Job:
    """The members of a job that have all met and are at round 5, their planes, and what their trainings are told."""

    def __init__(self, folder: Path) -> None:
        self.control = Control(folder)
        access = ArbitratorAccess(f"127.0.0.1:{self.control.port}", RUN, TOKEN, Timeouts(rpc_s=2.0, lease_s=6.0))
        self.workers, self.servers = list(map(worker, range(WORKERS))), list(map(server, range(SERVERS)))
        processes = [*self.servers, *self.workers]
        self.planes = {process: Plane() for process in processes}
        self.words: dict[Process, queue.SimpleQueue[Any]] = {process: queue.SimpleQueue() for process in processes}
        self.launcher = Member(access, Process("launcher", 0, "launcher"))
        self.members: list[Any] = [
            *(ServerMember(access, one, self.planes[one], self.words[one].put) for one in self.servers),
            *(WorkerMember(access, one, self.planes[one], WORKERS, self.words[one].put) for one in self.workers),
            self.launcher,
        ]
        for member in self.members:
            member.start()
        for one in self.workers:
            self.planes[one].hears(("resume", 1, 0, WORKERS, []))
            self.planes[one].at = 5

    def told(self, process: Process) -> Any:
        """The next word for its training, or why it is to end."""
        return self.words[process].get(timeout=PATIENCE_S)

    def lose(self, slot: int) -> None:
        """The connections of a worker to servers close."""
        for one in self.servers:
            self.planes[one].losses.put(PeerFailure("worker", slot))

    def close(self) -> None:
        threads = [threading.Thread(target=member.close) for member in self.members]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    one = Job(tmp_path)
    yield one
    one.close()
    one.control.stop()


def test_all_others_hear_of_a_loss_also_from_a_coordinator_that_was_away(job: Job) -> None:
    control = job.control
    job.planes[worker(1)].at = 4
    job.lose(2)  # two servers see it: no third word is needed
    for slot in (0, 1, 3):
        job.planes[worker(slot)].hears(("resume", 2, 5, 3, []))
    control.notes.wait_for(kind="members", workers=[0, 1, 3], round=5)
    assert control.lost == [2]
    assert control.gauges.method_calls[-3:] == [call.members(4, 2), call.lost("worker"), call.members(3, 2)]
    control.stop()
    job.planes[worker(1)].at = 5
    job.lose(1)
    control.start()
    control.notes.wait_for(kind="members", workers=[0, 3])
    assert control.lost == [2, 2, 1], "the second arbitrator is told of the loss before it, too"
    assert [(line["role"], line["slot"]) for line in control.notes if line["kind"] == "lost"] == [
        ("worker", 2),
        ("worker", 1),
    ]
    assert all(job.words[worker(slot)].empty() for slot in (0, 3)), "they stay"
    job.close()
    wait_for(lambda: sorted(control.left) == [0, 3], "both to have said their last word", PATIENCE_S)


def test_what_the_launcher_says_arrives_over_later_connections_and_counts_once(job: Job) -> None:
    asks = job.launcher
    asks.follow(suspicion(server(1, "")))
    assert job.told(server(1)) == "server 1 (first) counts as lost: it has exited"
    asks.tell(AskLeave(worker(7), 1), keep=True)  # there is none
    for request, slot in enumerate((2, 1), 2):
        job.control.stop()  # so nobody has a connection
        asks.tell(AskLeave(worker(slot), request), keep=True)
        job.control.start()
        assert job.told(worker(slot)) == LeaveAsked(request)
    asks.tell(AskLeave(worker(2), 4), keep=True)  # it was refused, and is asked once more
    assert job.told(worker(2)) == LeaveAsked(4)
    assert all(job.words[one].empty() for one in job.workers)


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
    with pytest.raises(PeerLostError, match="members have changed while"):
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
