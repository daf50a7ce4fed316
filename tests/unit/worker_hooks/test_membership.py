"""Workers and servers follow the coordinator over real streams. Their sums are made by threads.

What they decide is tested without threads (tests/unit/membership, tests/models/membership).
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
from dynamix_ps.config.schema import Timeouts
from dynamix_ps.errors import PeerLostError
from dynamix_ps.membership.coordinator import Coordinator
from dynamix_ps.membership.effects import GoAway, suspicion
from dynamix_ps.membership.generations import MembershipSettings
from dynamix_ps.membership.journal import Record
from dynamix_ps.membership.known_members import Planned
from dynamix_ps.membership.messages import (
    AskLeave,
    Enter,
    Entry,
    Fence,
    Freeze,
    LeaveAsked,
    Process,
    Ready,
    Resume,
    Suspect,
)
from dynamix_ps.membership.worker import ForTraining
from dynamix_ps.rpc.access import ArbitratorAccess
from dynamix_ps.rpc.member import Member
from dynamix_ps.rpc.server import RpcServer
from server_hooks.membership import ServerMember
from tests.launching import wait_for
from tests.rounds_of_threads import Lost, RoundWorker, SumServer
from tests.unit.arbitrator.service_bench import Bench, Scripted
from worker_hooks.membership import late_servers
from worker_hooks.membership import member as worker_member
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
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
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


class Job:
    """Workers and servers with their members.

    `at[rank, number]`: what happens before a worker's pushes of a round. `last[rank]`: the round with which it leaves.
    """

    def __init__(self, control: Control, workers: int, servers: int) -> None:
        self.control, self._founders = control, workers
        self.at: dict[tuple[int, int], Callable[[], object]] = {}
        self.last: dict[int, int] = {}
        self.asked: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.replaced: dict[int, str] = {}  # by rank
        self.servers_replaced: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.servers = [SumServer() for _ in range(servers)]
        self.server_members = [self.serve(slot, "first") for slot in range(servers)]
        self.workers: list[RoundWorker] = []
        self.members = [self.work(rank, "first") for rank in range(workers)]

    def serve(self, slot: int, name: str) -> ServerMember:
        process = Process("server", slot, name)
        member = ServerMember(self.control.access(), process, self.servers[slot], self.servers_replaced.put)
        member.start()
        return member

    def work(self, rank: int, name: str, late: bool = False) -> WorkerMember:
        def before(number: int) -> None:
            self.at.get((rank, number), lambda: None)()

        def follow(word: ForTraining) -> None:
            if isinstance(word, LeaveAsked):
                self.asked.put(rank)
            elif isinstance(word, GoAway) and rank not in self.replaced:
                self.replaced[rank] = word.reason
                worker.die()

        worker = RoundWorker(
            rank, self.workers, self._founders, self.servers, before, lambda number: self._after(rank, number)
        )
        process = Process("worker", rank, name)
        member = WorkerMember(self.control.access(), process, worker, self._founders, follow, late)
        self.workers.append(worker)
        member.start()
        return member

    def _after(self, rank: int, number: int) -> bool:
        """What a worker does between two rounds. Returns whether it goes on."""
        left = [other for other, last in self.last.items() if last == number]
        if left:
            self.members[rank].others_left(left)
        if rank in left:
            self.members[rank].close()
            for server in self.servers:
                server.losses.put(Lost("worker", rank))  # its connections close
        return rank not in left

    def take_in(self, entering: Process, ranks: list[int], number: int, then: Callable[[Planned], object]) -> None:
        """These workers take it in before round `number`; `then` in the first one of them."""

        def take_in(rank: int) -> None:
            wait_for(lambda: entering in self.members[rank].offered().values(), f"{entering} to be offered")
            planned = self.members[rank].take_in([entering])
            if rank == ranks[0]:
                then(planned)

        for rank in ranks:
            self.at[rank, number] = lambda rank=rank: take_in(rank)  # type: ignore[misc]

    def train(self, rounds: int) -> None:
        """Until all that live have done so many rounds."""
        for worker in list(self.workers):
            worker.train(rounds)
        for worker in self.workers:
            worker.thread.join(PATIENCE_S)
            last = self.last.get(worker.rank, rounds - 1)
            assert worker.dead or worker.done == last + 1, f"worker {worker.rank} is at round {worker.done}"

    def close(self) -> None:
        threads = [threading.Thread(target=member.close) for member in (*self.members, *self.server_members)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)

    def check(self, rounds: int, gone: dict[int, int]) -> None:
        """Who lives has done every round with the same others. `gone`: the round from which a rank is in no sum."""
        living = [worker for worker in self.workers if not worker.dead and worker.rank not in self.last]
        expected = [
            frozenset(rank for rank in range(len(self.workers)) if number < gone.get(rank, rounds))
            for number in range(rounds)
        ]
        for worker in living:
            assert worker.history == expected, f"worker {worker.rank}"

    def lost(self) -> list[tuple[str, int]]:
        return [(line["role"], line["slot"]) for line in self.control.notes.lines if line["kind"] == "lost"]


@contextlib.contextmanager
def running(folder: Path, workers: int = 4, servers: int = 2, **limits: Any) -> Iterator[Job]:
    """A job whose founders have all met."""
    control = Control(folder, MembershipSettings(workers, servers, **{"confirm_s": 30.0, "lease_s": 20.0, **limits}))
    job = Job(control, workers, servers)
    control.notes.wait_for("members")
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


def test_survivors_finish_the_round_without_a_lost_worker(tmp_path: Path) -> None:
    with running(tmp_path) as job:
        job.at[2, 40] = job.workers[2].die  # two servers see it: no third word is needed
        job.train(80)
        job.check(80, {2: 40})
        job.control.notes.wait_for("members", workers=[0, 1, 3], round=40)
        assert (job.lost(), job.control.lost) == ([("worker", 2)], [2])
        assert job.replaced.keys() <= {2}, "the others stay"
        assert job.control.shown[-3:] == [(4, 2), "worker", (3, 2)]


def test_a_coordinator_that_was_away_knows_the_members_again(tmp_path: Path) -> None:
    with running(tmp_path) as job:
        job.at[2, 20] = job.workers[2].die
        job.at[0, 40] = job.control.stop
        job.at[0, 41] = job.control.start
        job.at[1, 60] = job.workers[1].die
        job.train(90)
        job.check(90, {2: 20, 1: 60})
        assert job.control.lost == [2, 2, 1], "the second arbitrator is told of the loss before it, too"


def test_a_worker_leaves_with_a_round_and_no_generation_changes(tmp_path: Path) -> None:
    with running(tmp_path) as job:
        job.last = {2: 40, 0: 60}
        job.train(80)
        job.check(80, {2: 41, 0: 61})
        assert [len(job.workers[rank].history) for rank in (2, 0)] == [41, 61]
        assert (sorted(job.control.left), job.control.lost) == ([0, 2], [])
    assert [line["kind"] for line in job.control.notes.lines] == ["members"]


def test_a_request_to_leave_arrives_over_later_connections_and_counts_once(tmp_path: Path) -> None:
    with running(tmp_path) as job, launcher(job) as asks:
        asks.tell(AskLeave(Process("worker", 7, "first"), 1), keep=True)  # there is none
        for request, rank in enumerate((2, 1), 2):
            job.control.stop()  # so nobody has a connection
            asks.tell(AskLeave(Process("worker", rank, "first"), request), keep=True)
            job.control.start()
            assert job.asked.get(timeout=PATIENCE_S) == rank
        asks.tell(AskLeave(Process("worker", 2, "first"), 4), keep=True)  # it was refused, and is asked once more
        assert job.asked.get(timeout=PATIENCE_S) == 2
        assert job.asked.empty()


def test_a_server_and_a_worker_enter_in_the_places_of_lost_ones(tmp_path: Path) -> None:
    with running(tmp_path, servers=3) as job:
        lost_server, server, worker = job.servers[1], Process("server", 1, "second"), Process("worker", 2, "second")

        def kill_server() -> None:
            lost_server.die(1, job.workers)

        def serve() -> None:
            job.servers[1] = SumServer()
            job.server_members.append(job.serve(1, "second"))

        def work() -> None:
            job.members.append(job.work(2, "second", late=True))

        def begin(planned: Planned) -> None:
            job.workers[-1].history = list(job.workers[0].history)
            job.members[-1].begin(planned, 70)
            job.workers[-1].train(90)

        job.at[0, 20], job.at[0, 30] = kill_server, serve
        job.take_in(server, [0, 1, 2, 3], 40, then=lambda planned: None)
        job.at[2, 50], job.at[0, 60] = job.workers[2].die, work
        job.take_in(worker, [0, 1, 3], 70, then=begin)
        job.train(90)
        histories = {tuple(one.history) for one in job.workers if not one.dead}
        assert histories == {(EVERYBODY,) * 50 + (EVERYBODY - {2},) * 20 + (EVERYBODY,) * 20}
        summed = {number for number, _ in job.servers[1].sums}
        assert summed == set(range(40, 90)), "a key of every round, and of none before"
        assert job.replaced.keys() <= {2}, "the others stay"


def test_a_server_that_counts_as_lost_hears_of_it_at_once_or_when_it_is_back(tmp_path: Path) -> None:
    """The word of the launcher is enough, and names the one that is there: said by the slot alone, it is said once."""
    with running(tmp_path, servers=3) as job, launcher(job) as says:
        says.follow(suspicion(Process("server", 2, "")))
        assert job.servers_replaced.get(timeout=PATIENCE_S) == "server 2 (first) counts as lost: it has exited"
        job.server_members[2].close()
        job.server_members.append(job.serve(2, "first"))
        assert job.servers_replaced.get(timeout=PATIENCE_S) == "server 2 (first) was replaced in generation 2"
        job.server_members.append(job.serve(2, "second"))
        second = Process("server", 2, "second")
        wait_for(lambda: second in job.members[0].offered().values(), "the second one to be offered")
        job.control.stop()
        job.control.start()
        says.follow(suspicion(Process("worker", 3, "first")))
        job.control.notes.wait_for("members", workers=[0, 1, 2])
        assert job.lost() == [("server", 2), ("worker", 3)]


def test_who_is_silent_everywhere_is_lost_after_its_lease_and_hears_it_when_it_is_back(tmp_path: Path) -> None:
    """Its connections stay open."""
    with running(tmp_path, workers=3, lease_s=1.0) as job:

        def vanish() -> None:
            stream = job.members[2]._member
            stream._access = dataclasses.replace(stream._access, timeouts=Timeouts(rpc_s=2.0, lease_s=NEVER_S))
            for server in job.servers:
                server.missed = frozenset({2})
            wait_for(lambda: 2 in job.replaced, "worker 2 to hear of it", PATIENCE_S)

        job.at[2, 10] = vanish
        job.train(30)
        job.check(30, {2: 10})
        assert job.lost() == [("worker", 2)]
        assert job.replaced == {2: "worker 2 (first) counts as lost: its lease ran out while others waited"}


def test_too_few_workers_wait_and_then_make_the_rounds_at_hand(tmp_path: Path) -> None:
    with running(tmp_path, min_workers=4, join_wait_s=0.3) as job:
        job.at[2, 40] = job.workers[2].die
        job.train(60)
        job.check(60, {2: 40})
        notes = [(line["kind"], line.get("workers")) for line in job.control.notes.lines]
        short = notes.index(("short_of_workers", 3))
        assert notes[short:] == [("short_of_workers", 3), ("finishing", 3), ("members", [0, 1, 3])]


# Without a coordinator.


def member_of(plane: RoundWorker, late: bool = False) -> WorkerMember:
    return WorkerMember(NOWHERE, Process("worker", plane.rank, "first"), plane, 3, pytest.fail, late)


def test_a_server_names_the_worker_whose_connection_it_was() -> None:
    """A newcomer in the place of that worker may be told of before the closed connection is looked at."""
    plane, lost, there = SumServer(), Process("worker", 2, "first"), Process("worker", 2, "second")
    member = ServerMember(NOWHERE, Process("server", 0, "first"), plane)
    member._act(Fence(1, 0, frozenset(), frozenset({lost})))
    plane.losses.put(Lost("worker", 2))
    member._act(Fence(1, 0, frozenset({lost}), frozenset({there})))
    assert member._member._kept == [Suspect(lost)]


def test_a_worker_votes_for_a_server_that_answers_and_names_the_one_before_it_as_lost() -> None:
    """It may have answered before the closed connection is looked at."""
    sums, lost, there = SumServer(), Process("server", 0, "first"), Process("server", 0, "second")
    plane = RoundWorker(0, [], 3, [sums], lambda number: None)
    member = member_of(plane)
    for message in (Freeze(1), Resume(1, 0, frozenset(), founders=frozenset({Process("worker", 0, "first"), lost}))):
        member._act(message)
    member._act(Enter(Entry(1, there)))
    sums.die(0, [])
    member._look()
    assert (member.offered(), member._member._kept) == ({}, [])
    plane.losses.put(Lost("server", 0))
    sums.dead = False
    member._look()
    assert (member.offered(), member._member._kept) == ({1: there}, [Suspect(lost)])


def test_a_worker_tells_whom_it_waits_for_in_vain() -> None:
    plane = RoundWorker(0, [], 3, [], lambda number: None)
    member, silent = member_of(plane), Process("worker", 1, "first")
    for message in (Freeze(1), Resume(1, 0, frozenset(), founders=frozenset({silent}))):
        member._act(message)
    plane.missed = frozenset({1, 2})
    member._look()
    assert member._member._waiting == {silent}


def test_a_newcomer_begins_when_it_has_heard_of_the_generation_that_the_others_are_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They may give it the state sooner than the coordinator tells it."""
    monkeypatch.setattr(worker_member, "_HEAR_S", NEVER_S)
    plane = RoundWorker(2, [], 0, [], lambda number: None)
    member = member_of(plane, late=True)
    began = threading.Thread(
        target=member.begin, args=(Planned([Process("worker", 2, "first")], [], 3), 7), daemon=True
    )
    began.start()
    wait_for(lambda: member._happened._waiters or not began.is_alive(), "it to wait")  # type: ignore[attr-defined]
    member._act(Resume(3, 5, frozenset()))
    began.join(PATIENCE_S)
    assert plane.done == 7
    assert member._member._kept == [Ready()], "the coordinator must know, also if a connection is lost"


def test_a_newcomer_does_not_begin_without_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = SumServer()
    plane = RoundWorker(2, [], 0, [sums], lambda number: None)
    member = member_of(plane, late=True)
    member._act(Resume(3, 5, frozenset()))
    planned = Planned([Process("worker", 2, "first")], [Process("server", 0, "first")], 2)
    with pytest.raises(PeerLostError, match="workers were lost while"):
        member.begin(planned, 7)
    sums.dead = True
    monkeypatch.setattr(late_servers, "_MEET_S", 0.0)
    for wait in (lambda one: one.begin(planned, 7), lambda one: one.take_in(planned.servers)):
        with pytest.raises(PeerLostError, match=r"server 0 \(first\) has not answered"):
            wait(member_of(plane, late=True))


def close(member: WorkerMember, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Returns its last words."""
    told: list[Any] = []
    monkeypatch.setattr(member._member, "close", told.append)
    monkeypatch.setattr(member._watch, "close", lambda: None)
    member.close()
    member.close()
    return told


def test_a_newcomer_that_has_not_entered_ends_without_waiting_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    plane = RoundWorker(2, [], 0, [], lambda number: None)
    monkeypatch.setattr(plane, "depart", lambda over: pytest.fail("it waits for others"))
    assert close(member_of(plane, late=True), monkeypatch) == [None], "once"


def test_who_leaves_waits_for_the_others_unless_they_do_not_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    plane = RoundWorker(0, [], 3, [], lambda number: None)
    monkeypatch.setattr(plane, "depart", lambda over: not over())
    member, me = member_of(plane), Process("worker", 0, "first")
    for generation in (1, 2):
        member._act(Freeze(generation))
        member._act(Resume(generation, 0, frozenset(), founders=frozenset({me})))
    member.others_left([0])
    assert close(member, monkeypatch) == [Suspect(me)]
