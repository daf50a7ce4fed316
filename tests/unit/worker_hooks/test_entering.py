"""Workers enter a job that trains, over real streams to the coordinator. Sums are made by threads."""

from __future__ import annotations

import io
import queue
import threading
from pathlib import Path

import pytest

from dynamix_ps.config.schema import Timeouts
from dynamix_ps.errors import PeerLostError
from dynamix_ps.membership.messages import Process, Ready, Resume
from dynamix_ps.rpc.access import ArbitratorAccess
from dynamix_ps.rpc.member import Member
from server_hooks.membership import ServerMember
from tests.rounds_of_threads import Lost, RoundWorker, SumServer
from tests.unit.worker_hooks.test_membership import PATIENCE_S, RUN, TOKEN, Job, running, wait_for
from worker_hooks.membership.handover import Handover, Planned
from worker_hooks.membership.member import WorkerMember

pytestmark = pytest.mark.timeout(60)
EVERYBODY = frozenset(range(4))


class Newcomer:
    """Another worker in the place of one of a job, with the state of worker 0 from `round_number` on."""

    def __init__(self, job: Job, slot: int, name: str) -> None:
        self.job, self.process = job, Process("worker", slot, name)
        self.refused: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.worker = RoundWorker(slot, job.workers, 0, job.servers, lambda number: None)
        self.member = WorkerMember(
            job.control.access(), self.process, self.worker, 4, replaced=self.refused.put, late=True
        )

    def hello(self) -> None:
        """Returns when the first worker has heard of it."""
        self.job.newcomers.append(self.member)
        self.member.start()
        wait_for(lambda: self.process in self.job.members[0].entries().values())

    def take_in(self, ranks: list[int], number: int, gives: bool = True) -> None:
        """Before round `number`, these workers take it in."""
        for rank in ranks:
            self.job.at[rank, number] = lambda rank=rank: self._take_in(rank, number, gives)  # type: ignore[misc]

    def _take_in(self, rank: int, number: int, gives: bool) -> None:
        member = self.job.members[rank]
        wait_for(lambda: self.process in member.entries().values())
        planned = member.take_in([self.process])
        if rank == 0 and gives:
            self.worker.history = list(self.job.workers[0].history)
            self.member.begin(planned, number)
            self.job.workers.append(self.worker)
            self.job.members.append(self.member)
            self.worker.train(self.job.workers[0].rounds)


def histories(job: Job) -> set[tuple[frozenset[int], ...]]:
    return {tuple(worker.history) for worker in job.workers if not worker.dead}


def test_a_newcomer_is_in_all_sums_from_one_round_on(tmp_path: Path) -> None:
    with running(tmp_path) as job:
        newcomer = Newcomer(job, 2, "w2b")
        job.at[2, 20] = job.workers[2].die
        job.at[0, 30] = newcomer.hello
        newcomer.take_in([0, 1, 3], 40)
        job.train(80)
        (history,) = histories(job)
        assert history == (EVERYBODY,) * 20 + (EVERYBODY - {2},) * 20 + (EVERYBODY,) * 40
        assert len([line for line in job.control.notes.lines if line["kind"] == "members"]) == 2, "no change for it"


def test_it_does_not_tell_of_servers_before_it_knows_which_they_are(tmp_path: Path) -> None:
    """A connection of its that closes may have been to a server that another one has replaced."""
    with running(tmp_path, servers=3, confirm_s=0.0) as job:
        newcomer = Newcomer(job, 4, "w4")
        newcomer.worker.losses.put(Lost("server", 1))
        newcomer.worker.losses.put(Lost("worker", 3))  # whom it may tell of
        newcomer.hello()
        job.control.notes.wait_for(lambda line: line["kind"] == "lost")
        newcomer.member.close()
    lost = [(line["role"], line["slot"]) for line in job.control.notes.lines if line["kind"] == "lost"]
    assert lost == [("worker", 3)]


def test_it_begins_when_it_has_heard_of_the_generation_that_the_others_are_in() -> None:
    """They may give it the state sooner than the coordinator tells it."""
    process, plane = Process("worker", 2, "w2b"), RoundWorker(2, [], 0, [], lambda number: None)
    member = WorkerMember(ArbitratorAccess("127.0.0.1:1", RUN, TOKEN, Timeouts()), process, plane, 4, late=True)
    began = threading.Thread(target=member.begin, args=(Planned([process], [], 3), 7))
    began.start()
    wait_for(lambda: member._resumed._waiters or not began.is_alive())  # type: ignore[attr-defined]
    member._act(Resume(3, 5, frozenset(), frozenset()))
    began.join(PATIENCE_S)
    assert plane.done == 7
    assert member._member._kept == [Ready()], "the coordinator must know, also if a connection is lost"


def test_it_is_a_member_like_others_and_may_be_lost_and_replaced(tmp_path: Path) -> None:
    with running(tmp_path) as job:
        first, second = Newcomer(job, 2, "w2b"), Newcomer(job, 2, "w2c")
        job.at[2, 10] = job.workers[2].die
        job.at[0, 20] = first.hello
        first.take_in([0, 1, 3], 30)
        job.at[1, 45] = first.worker.die
        job.at[0, 60] = second.hello
        second.take_in([0, 1, 3], 70)
        job.train(90)
        (history,) = histories(job)
        with_two = [number for number, present in enumerate(history) if 2 in present]
        assert with_two == [*range(10), *range(30, with_two[-21] + 1), *range(70, 90)]
        assert 44 <= with_two[-21] <= 46, "it died while worker 1 was before round 45"


def test_it_pushes_to_the_servers_that_are_left(tmp_path: Path) -> None:
    """It may hear of a lost server in a decision, or when it comes."""
    with running(tmp_path, servers=3) as job:
        newcomer = Newcomer(job, 2, "w2b")
        job.at[2, 20] = job.workers[2].die
        job.at[1, 30] = lambda: job.kill_server(0)
        job.at[0, 40] = newcomer.hello
        newcomer.take_in([0, 1, 3], 50)
        job.at[3, 70] = lambda: job.kill_server(2)
        job.train(100)
        (history,) = histories(job)
        assert history == (EVERYBODY,) * 20 + (EVERYBODY - {2},) * 30 + (EVERYBODY,) * 50


@pytest.mark.parametrize("taken_in", [False, True], ids=["offered", "expected"])
def test_who_has_no_state_when_workers_are_lost_is_not_waited_for(tmp_path: Path, taken_in: bool) -> None:
    """Who would have given it may be among the lost ones. It is to come again."""
    with running(tmp_path, workers=5) as job:
        newcomer = Newcomer(job, 2, "w2b")
        job.at[2, 20] = job.workers[2].die
        job.at[0, 30] = newcomer.hello
        if taken_in:
            newcomer.take_in([0, 1, 3, 4], 40, gives=False)
        job.at[4, 41 if not taken_in else 40] = job.workers[4].die
        job.train(80)
        (history,) = histories(job)
        assert history[-1] == {0, 1, 3}
        assert "must be started again" in newcomer.refused.get(timeout=PATIENCE_S)


def test_a_state_of_another_decision_is_not_taken(tmp_path: Path) -> None:
    with running(tmp_path) as job:
        newcomer = Newcomer(job, 2, "w2b")
        job.at[2, 20] = job.workers[2].die
        job.at[0, 30] = newcomer.hello
        job.train(40)
        wait_for(lambda: newcomer.member.founded)
        with pytest.raises(PeerLostError, match="workers were lost while"):
            newcomer.member.begin(Planned([newcomer.process], [], 1), 40)
        newcomer.member.close()


class NewServer:
    """Another server in the place of one of a job that is lost."""

    def __init__(self, job: Job, slot: int, name: str) -> None:
        self.job, self.process, self.sums = job, Process("server", slot, name), SumServer()
        self.member = ServerMember(job.control.access(), self.process, self.sums, job.servers_replaced.put)

    def start(self) -> None:
        """Workers can connect to it when it is in the place of the other one."""
        self.job.servers[self.process.slot] = self.sums
        self.job.server_members.append(self.member)
        self.member.start()

    def take_in(self, ranks: list[int], number: int) -> None:
        """Before round `number`, these workers give it keys."""

        def take_in(member: WorkerMember) -> None:
            wait_for(lambda: self.process in member.entries().values())
            member.take_in([self.process])

        for rank in ranks:
            self.job.at[rank, number] = lambda rank=rank: take_in(self.job.members[rank])  # type: ignore[misc]


def test_a_server_sums_from_one_round_on_in_the_place_of_a_lost_one(tmp_path: Path) -> None:
    with running(tmp_path, servers=3) as job:
        server, late = NewServer(job, 1, "s1b"), Newcomer(job, 2, "w2b")
        job.at[0, 20] = lambda: job.kill_server(1)
        job.at[0, 30] = server.start
        server.take_in([0, 1, 2, 3], 40)
        job.at[2, 50] = job.workers[2].die
        job.at[0, 60] = late.hello
        late.take_in([0, 1, 3], 70)
        job.train(90)
        (history,) = histories(job)
        assert history == (EVERYBODY,) * 50 + (EVERYBODY - {2},) * 20 + (EVERYBODY,) * 20
        summed = {number for number, _ in server.sums.sums}
        assert summed == set(range(40, 90)), "a key of every round, and of none before"
        assert job.replaced.keys() <= {2}, "the others stay"


def test_it_may_be_lost_again_and_what_is_said_of_the_one_before_does_not_concern_it(tmp_path: Path) -> None:
    with running(tmp_path, servers=2) as job:
        first, second = NewServer(job, 1, "s1b"), NewServer(job, 1, "s1c")
        launcher = Member(job.control.access(), Process("launcher", 0, "launcher"))
        launcher.start()
        job.at[0, 10] = lambda: job.kill_server(1)
        job.at[0, 20] = first.start
        first.take_in([0, 1, 2, 3], 30)
        job.at[1, 35] = lambda: launcher.suspect("server", 1, "s1")
        job.at[2, 45] = lambda: job.kill_server(1)
        job.at[0, 55] = second.start
        second.take_in([0, 1, 2, 3], 65)
        job.train(80)
        job.check(80, {})
        lost = [line["incarnation"] for line in job.control.notes.lines if line["kind"] == "lost"]
        assert lost == ["s1", "s1b"]
        assert {number for number, _ in second.sums.sums} == set(range(65, 80))
        launcher.close()


def test_a_worker_votes_for_a_server_when_it_has_met_it(tmp_path: Path) -> None:
    with running(tmp_path, servers=2) as job:
        server = NewServer(job, 1, "s1b")
        server.sums.dead = True  # it does not answer yet
        job.at[0, 10] = lambda: job.kill_server(1)
        job.train(20)
        server.start()
        wait_for(lambda: server.process in job.members[0]._entries.values())
        assert job.members[0].entries() == {}
        server.sums.dead = False
        wait_for(lambda: server.process in job.members[0].entries().values())


def test_what_is_said_of_the_lost_one_does_not_concern_the_one_in_its_place(tmp_path: Path) -> None:
    with running(tmp_path) as job:
        newcomer = Newcomer(job, 2, "w2b")
        launcher = Member(job.control.access(), Process("launcher", 0, "launcher"))
        launcher.start()
        job.at[2, 20] = job.workers[2].die
        job.at[0, 30] = newcomer.hello
        newcomer.take_in([0, 1, 3], 40)
        job.at[1, 50] = lambda: launcher.suspect("worker", 2, "w2")
        job.at[3, 60] = lambda: launcher.suspect("worker", 3, "another")
        job.train(80)
        (history,) = histories(job)
        assert history[-1] == EVERYBODY
        launcher.close()


HANDOVER = Handover(
    framework="torch",
    settings={"mode": "adapt", "window": "50"},
    parameters={"0.weight": "float32 of shape (4, 4)", "0.bias": "float32 of shape (4,)"},
    data=[0.0, 400.0, 0.1 + 0.2],
    lengths=7,
    planned=Planned(
        [Process("worker", 0, "a", "10.0.0.1:1"), Process("worker", 2, "b")], [Process("server", 1, "c")], 3
    ),
    round=812,
    sums={"numbers": {"a": 0, "b": 1}, "shares": [1 / 3, 2 / 3], "window_bytes": None},
    lag=2,
    steps=800,
    sums_made=810,
    window=80,
    present=[0, 2],
    followed=[],
    newest=None,
    wire={"state": {"wire": "bf16", "wider_wait": 16}, "is_over": False},
    plans={"held": {"version": 1, "batch_sizes": [4, 4]}},
    entries={"version": 1, "coming": []},
    departures=[[1, 40]],
    gathers=[0, 0, False],
    owed=[[813, [[0, 4, 8]]]],
)


def test_a_handover_arrives_as_it_was() -> None:
    out = io.BytesIO()
    HANDOVER.write(out)
    out.seek(0)
    found = Handover.read(out)
    assert found == HANDOVER
    assert found.planned is not None
    assert found.planned.workers[0].address == "10.0.0.1:1", "which does not count in a comparison"
    assert list(found.parameters) == list(HANDOVER.parameters), "in order"
