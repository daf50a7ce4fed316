"""Workers and servers follow the coordinator over real streams. Their sums are made by threads."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dynamix_ps.arbitrator.coordination import Coordination
from dynamix_ps.config.schema import Timeouts
from dynamix_ps.membership.coordinator import Coordinator
from dynamix_ps.membership.generations import MembershipSettings
from dynamix_ps.membership.journal import Record
from dynamix_ps.membership.messages import AskLeave, Fence, Finish, Freeze, Process, Resume, Status, Suspect
from dynamix_ps.rpc.access import ArbitratorAccess
from dynamix_ps.rpc.member import Member
from dynamix_ps.rpc.server import RpcServer
from server_hooks.membership import ServerMember
from tests.rounds_of_threads import Lost, RoundWorker, SumServer
from tests.unit.arbitrator.service_bench import Bench, Scripted
from worker_hooks.membership import member as membership
from worker_hooks.membership.member import WorkerMember

pytestmark = pytest.mark.timeout(60)

RUN, TOKEN = "run-1", "secret"
PATIENCE_S = 30.0


def wait_for(what: Callable[[], object]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < until_s, "it does not happen"
        time.sleep(0.005)


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

    def wait_for(self, what: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        with self.changed:
            assert self.changed.wait_for(lambda: any(map(what, self.lines)), PATIENCE_S), self.lines
            return next(line for line in self.lines if what(line))


class Shown(list[tuple[int, int] | str]):
    """What the endpoint for Prometheus would have, in order."""

    def members(self, workers: int, servers: int) -> None:
        self.append((workers, servers))

    def lost(self, role: str) -> None:
        self.append(role)


class Control:
    """A coordinator in a loop of its own, which can be started again at the same port."""

    def __init__(self, folder: Path, settings: MembershipSettings, confirm_s: float = 30.0) -> None:
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
        return ArbitratorAccess(f"127.0.0.1:{self.port}", RUN, TOKEN, Timeouts(rpc_s=2.0, lease_s=6.0))


class Job:
    """Workers and servers with their members.

    `at[rank, number]`: what happens before a worker's pushes of a round. `last[rank]`: the round with which it leaves.
    """

    def __init__(self, control: Control, workers: int, servers: int) -> None:
        self.control = control
        self.at: dict[tuple[int, int], Callable[[], None]] = {}
        self.last: dict[int, int] = {}
        self.before_it_leaves: Callable[[], object] = lambda: None
        self.asked: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.servers = [SumServer() for _ in range(servers)]
        self.replaced: dict[int, str] = {}  # by rank
        self.servers_replaced: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.workers: list[RoundWorker] = []
        for rank in range(workers):
            before = lambda number, rank=rank: self.at.get((rank, number), lambda: None)()  # noqa: E731
            after = lambda number, rank=rank: self._after(rank, number)  # noqa: E731
            self.workers.append(RoundWorker(rank, self.workers, workers, self.servers, before, after))
        access = control.access()
        self.newcomers: list[WorkerMember] = []  # also those that never enter
        self.members = [
            WorkerMember(
                access,
                Process("worker", rank, f"w{rank}"),
                worker,
                workers,
                lambda rank=rank: self.asked.put(rank),  # type: ignore[misc]
                self._ends(worker),
            )
            for rank, worker in enumerate(self.workers)
        ]
        self.server_members = [
            ServerMember(access, Process("server", slot, f"s{slot}"), server, self.servers_replaced.put)
            for slot, server in enumerate(self.servers)
        ]
        for member in (*self.server_members, *self.members):
            member.start()

    def _after(self, rank: int, number: int) -> bool:
        """What a worker does between two rounds. Returns whether it goes on."""
        left = [other for other, last in self.last.items() if last == number]
        if rank in left:
            self.before_it_leaves()
        if left:
            self.members[rank].others_left(left)
        if rank in left:
            self.members[rank].close()
            for server in self.servers:
                server.losses.put(Lost("worker", rank))  # its connections close
        return rank not in left

    def _ends(self, worker: RoundWorker) -> Callable[[str], None]:
        def end(reason: str) -> None:
            if worker.rank not in self.replaced:
                self.replaced[worker.rank] = reason
                worker.die()

        return end

    def kill_server(self, slot: int) -> None:
        """All workers see it."""
        self.servers[slot].die(slot, self.workers)

    def train(self, rounds: int) -> None:
        """Until all that live have done so many rounds."""
        for worker in self.workers:
            worker.train(rounds)
        for worker in self.workers:
            worker.thread.join(PATIENCE_S)
            last = self.last.get(worker.rank, rounds - 1)
            assert worker.dead or worker.done == last + 1, f"worker {worker.rank} is at round {worker.done}"

    def close(self) -> None:
        everybody = {*self.members, *self.server_members, *self.newcomers}
        threads = [threading.Thread(target=member.close) for member in everybody]
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


@contextlib.contextmanager
def running(folder: Path, workers: int = 4, servers: int = 2, **limits: Any) -> Iterator[Job]:
    """A job whose founders have all met."""
    control = Control(folder, MembershipSettings(workers, servers, **{"confirm_s": 30.0, "lease_s": 20.0, **limits}))
    job = Job(control, workers, servers)
    control.notes.wait_for(lambda line: line["kind"] == "members")
    try:
        yield job
    finally:
        job.close()
        control.stop()


def test_survivors_finish_the_round_without_a_lost_worker(tmp_path: Path) -> None:
    with running(tmp_path) as job:
        job.at[2, 40] = job.workers[2].die  # two servers see it: no third word is needed
        job.train(80)
        job.check(80, {2: 40})
        lost = job.control.notes.wait_for(lambda line: line["kind"] == "lost")
        assert (lost["role"], lost["slot"]) == ("worker", 2)
        after = job.control.notes.wait_for(lambda line: line["kind"] == "members" and len(line["workers"]) == 3)
        assert (after["workers"], after["round"]) == ([0, 1, 3], 40)
        assert job.control.lost == [2]
        assert job.replaced.keys() <= {2}, "the others stay"
        assert job.control.shown[-3:] == [(4, 2), "worker", (3, 2)]


def test_the_word_of_the_launcher_is_enough(tmp_path: Path) -> None:
    with running(tmp_path, servers=1) as job:
        launcher = Member(job.control.access(), Process("launcher", 0, "launcher"))
        launcher.start()

        def die() -> None:
            job.workers[3].dead = True
            launcher.suspect("worker", 3)

        job.at[3, 10] = die
        job.train(20)
        job.check(20, {3: 10})
        launcher.close()


def test_several_losses_one_after_the_other_and_at_once(tmp_path: Path) -> None:
    with running(tmp_path, workers=6) as job:
        for rank, number in ((5, 10), (1, 30), (2, 30)):
            job.at[rank, number] = job.workers[rank].die
        job.train(60)
        living = [worker for worker in job.workers if not worker.dead]
        assert len({tuple(worker.history) for worker in living}) == 1
        assert living[0].history[9] == frozenset(range(6))
        assert living[0].history[-1] == frozenset({0, 3, 4})


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
        assert (job.control.left, job.control.lost) == ([2, 0], [])
        assert {member._generation for member in job.members} == {1}
    assert [line["kind"] for line in job.control.notes.lines].count("members") == 1
    assert not [line for line in job.control.notes.lines if line["kind"] == "lost"]


@pytest.mark.parametrize("number", [39, 40, 41])
def test_a_loss_about_the_last_round_of_a_worker_that_leaves(tmp_path: Path, number: int) -> None:
    with running(tmp_path, workers=5) as job:
        job.last = {2: 40}
        job.at[3, number] = job.workers[3].die
        job.train(80)
        job.check(80, {2: 41, 3: number})


def test_a_loss_is_decided_on_while_a_worker_that_has_had_its_last_round_still_counts_as_a_member(
    tmp_path: Path,
) -> None:
    with running(tmp_path, workers=5) as job:
        job.last = {2: 40}
        job.at[3, 41] = job.workers[3].die  # so the others wait in this round
        job.before_it_leaves = lambda: job.control.notes.wait_for(lambda line: line.get("workers") == [0, 1, 2, 4])
        job.train(80)
        job.check(80, {2: 41, 3: 41})


def test_one_that_leaves_and_is_rounds_behind_at_a_loss_ends_and_the_others_go_on(tmp_path: Path) -> None:
    """Nobody waits for it any more: the answers of its last round come late, over a slow link."""
    with running(tmp_path, workers=5) as job:
        job.last, leaver = {2: 40}, job.workers[2]
        receive = leaver.receive
        leaver.receive = lambda key, number, *more: None if number == 40 else receive(key, number, *more)  # type: ignore[method-assign]
        job.at[3, 43] = job.workers[3].die
        job.train(80)
        job.check(80, {2: 41, 3: 43})
        assert "before it had sum 40, with which it leaves; the others are at sum 43" in job.replaced[2]
        assert job.replaced.keys() <= {2, 3}, "the others stay"


def test_after_its_last_round_a_worker_takes_part_in_no_change() -> None:
    """The others may be rounds ahead of it, so what it would name is no round to make anew."""
    plane = RoundWorker(0, [], 3, [], lambda number: None)
    process = Process("worker", 0, "w0")
    member = WorkerMember(ArbitratorAccess("127.0.0.1:1", RUN, TOKEN, Timeouts()), process, plane, 3)
    assert member._act(Freeze(1)) == [Status(1, 0)] and plane._frozen
    member._act(Resume(1, 0, frozenset(), frozenset(), founders=frozenset(member._known.planned.values())))
    assert not plane._frozen
    member.others_left([0])
    assert member._act(Freeze(2)) == [] and not plane._frozen
    member._act(Resume(2, 5, frozenset(), frozenset()))
    assert plane._generation == 1


def test_a_worker_that_leaves_may_be_lost_before(tmp_path: Path) -> None:
    with running(tmp_path) as job:
        job.last = {2: 40}
        job.at[2, 40] = job.workers[2].die
        job.train(80)
        job.check(80, {2: 40})


def test_the_launcher_asks_a_worker_to_leave(tmp_path: Path) -> None:
    with running(tmp_path) as job:
        launcher = Member(job.control.access(), Process("launcher", 0, "launcher"))
        launcher.start()
        for request, rank in enumerate((7, 2), 1):  # there is no worker 7
            launcher.keep_telling(AskLeave(Process("worker", rank, f"w{rank}"), request))
        assert job.asked.get(timeout=PATIENCE_S) == 2
        assert job.asked.empty()
        launcher.close()


def test_a_request_to_leave_arrives_over_later_connections_and_counts_once(tmp_path: Path) -> None:
    with running(tmp_path) as job:
        launcher = Member(job.control.access(), Process("launcher", 0, "launcher"))
        launcher.start()
        for request, rank in enumerate((2, 1), 1):
            job.control.stop()  # so nobody has a connection
            launcher.keep_telling(AskLeave(Process("worker", rank, f"w{rank}"), request))
            job.control.start()
            assert job.asked.get(timeout=PATIENCE_S) == rank
        launcher.keep_telling(AskLeave(Process("worker", 2, "w2"), 3))  # it was refused, and is asked once more
        assert job.asked.get(timeout=PATIENCE_S) == 2
        assert job.asked.empty()
        launcher.close()


def test_who_has_left_is_not_lost(tmp_path: Path) -> None:
    with running(tmp_path) as job:
        job.train(5)
        for member in job.members:
            member.close()
        for worker in job.workers:
            worker.die()
        job.control.notes.wait_for(lambda line: line["kind"] == "members")
    assert [line for line in job.control.notes.lines if line["kind"] == "lost"] == []
    assert not job.replaced


def test_the_others_sum_what_a_lost_server_had(tmp_path: Path) -> None:
    with running(tmp_path, servers=3) as job:
        job.at[2, 40] = lambda: job.kill_server(1)
        job.at[0, 80] = lambda: job.kill_server(0)
        job.train(120)
        job.check(120, {})
        after = job.control.notes.wait_for(lambda line: line["kind"] == "members" and line["servers"] == [2])
        assert after["workers"] == [0, 1, 2, 3]
        lost = [line for line in job.control.notes.lines if line["kind"] == "lost"]
        assert [(line["role"], line["slot"]) for line in lost] == [("server", 1), ("server", 0)]
        assert (job.control.lost, job.replaced) == ([], {}), "no worker is lost"


def test_who_lacks_a_sum_that_died_with_its_server_ends_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "_LAST_ANSWERS_S", 0.1)
    with running(tmp_path, servers=3) as job:
        job.servers[1].last = (20, frozenset({0, 1}))
        job.at[0, 21] = lambda: job.kill_server(1)  # it has completed round 20
        job.train(60)
        job.check(60, {2: 21, 3: 21})
        assert job.replaced == dict.fromkeys((2, 3), "it lacks part of a sum that only server 1 had, which is lost")


@pytest.mark.slow
def test_a_server_that_gives_no_sign_of_life_is_lost_when_its_lease_is_over(tmp_path: Path) -> None:
    with running(tmp_path, servers=3, lease_s=3.0) as job:

        def stop() -> None:  # none of its connections closes
            job.server_members[1].close()
            with job.servers[1].mu:
                job.servers[1].dead = True
            for worker in job.workers:
                worker.missed_servers = frozenset({1})

        job.at[2, 40] = stop
        job.train(80)
        job.check(80, {})
        lost = job.control.notes.wait_for(lambda line: line["kind"] == "lost")
        assert (lost["role"], lost["slot"], lost["reason"]) == ("server", 1, "its lease ran out while others waited")
        assert (job.control.lost, job.replaced) == ([], {}), "no worker is lost"


def test_a_server_that_counts_as_lost_hears_of_it_at_once_or_when_it_is_back(tmp_path: Path) -> None:
    with running(tmp_path, servers=3) as job:
        launcher = Member(job.control.access(), Process("launcher", 0, "launcher"))
        launcher.start()
        launcher.suspect("server", 2)
        job.control.notes.wait_for(lambda line: line["kind"] == "members" and line["servers"] == [0, 1])
        launcher.close()
        assert job.servers_replaced.get(timeout=PATIENCE_S) == "server 2 (s2) counts as lost: it has exited"
        job.server_members[2].close()
        heard: queue.SimpleQueue[str] = queue.SimpleQueue()
        again = ServerMember(job.control.access(), Process("server", 2, "s2"), SumServer(), heard.put)
        again.start()
        assert heard.get(timeout=PATIENCE_S) == "server 2 (s2) was replaced in generation 2"
        again.close()


def test_a_loss_that_is_told_again_is_not_that_of_who_has_come_since(tmp_path: Path) -> None:
    """A role tells its suspicions again on every new connection."""
    with running(tmp_path, servers=3) as job:
        launcher = Member(job.control.access(), Process("launcher", 0, "launcher"))
        launcher.start()
        launcher.suspect("server", 1)
        job.control.notes.wait_for(lambda line: line["kind"] == "members" and line["servers"] == [0, 2])
        again = ServerMember(job.control.access(), Process("server", 1, "s1b"), SumServer(), job.servers_replaced.put)
        again.start()
        wait_for(lambda: Process("server", 1, "s1b") in job.members[0].entries().values())
        job.control.stop()
        job.control.start()
        launcher.suspect("worker", 3, "w3")
        job.control.notes.wait_for(lambda line: line["kind"] == "members" and line["workers"] == [0, 1, 2])
        launcher.close()
        again.close()
    lost = [(line["role"], line["incarnation"]) for line in job.control.notes.lines if line["kind"] == "lost"]
    assert lost == [("server", "s1"), ("worker", "w3")]


def test_a_server_names_the_worker_whose_connection_it_was() -> None:
    """A newcomer in the place of that worker may be told of before the closed connection is looked at."""
    plane, lost, there = SumServer(), Process("worker", 2, "w2"), Process("worker", 2, "w2b")
    member = ServerMember(ArbitratorAccess("127.0.0.1:1", RUN, TOKEN, Timeouts()), Process("server", 0, "s0"), plane)
    member._act(Fence(1, 0, frozenset(), frozenset({lost})))
    plane.losses.put(Lost("worker", 2))
    member._act(Fence(1, 0, frozenset({lost}), frozenset({there})))
    assert member._member._kept == [Suspect(lost)]


def test_a_worker_names_the_server_whose_connection_it_was() -> None:
    """The next server in its place may have answered before the closed connection is looked at."""
    plane, lost, there = (
        RoundWorker(0, [], 3, [], lambda number: None),
        *(Process("server", 1, s) for s in ("s1", "s1b")),
    )
    member = WorkerMember(ArbitratorAccess("127.0.0.1:1", RUN, TOKEN, Timeouts()), Process("worker", 0, "w0"), plane, 3)
    member._known.place([lost])
    plane.losses.put(Lost("server", 1))
    member._met(there)
    assert member._member._kept == [Suspect(lost)]


def test_too_few_workers_wait_and_then_make_the_rounds_at_hand(tmp_path: Path) -> None:
    with running(tmp_path, min_workers=4, join_wait_s=0.3) as job:
        job.at[2, 40] = job.workers[2].die
        job.train(60)
        job.check(60, {2: 40})
        notes = [(line["kind"], line.get("workers")) for line in job.control.notes.lines]
        short = notes.index(("short_of_workers", 3))
        assert notes[short:] == [("short_of_workers", 3), ("finishing", 3), ("members", [0, 1, 3])]


def test_a_worker_hears_that_it_is_to_finish_and_a_newcomer_without_state_ends() -> None:
    process, told = Process("worker", 0, "w0"), []
    for late in (False, True):
        member = WorkerMember(
            ArbitratorAccess("127.0.0.1:1", RUN, TOKEN, Timeouts()),
            process,
            RoundWorker(0, [], 3, [], lambda number: None),
            3,
            finish=lambda why: told.append(("finish", why)),
            replaced=lambda why: told.append(("replaced", why)),
            late=late,
        )
        member._act(Finish("2 workers are left"))
    assert told == [("finish", "2 workers are left"), ("replaced", "2 workers are left")]
