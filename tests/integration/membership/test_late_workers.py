"""A worker or a server comes late to real BytePS processes, in the place of one that was killed, and is in all sums.

So a worker is where a server was killed before.

Every round is made at a word of the test, so nothing depends on time.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from benchmarks.testbed.byteps_roles import OURS
from benchmarks.testbed.ports import free_port
from tests.integration.membership.lossy_job import serve
from tests.launching import wait_for

pytestmark = pytest.mark.timeout(180)

WORKERS, SERVERS, VALUES = 3, 2, 300_000
PATIENCE_S, QUIET_S = 60.0, 1.0


def work(environment: dict[str, str], pipe: Connection) -> None:
    """The life of a worker's process: it does what the test says, one thing after the other."""
    os.environ.update(environment)
    import torch

    from dynamix_ps.comm.byteps import comm as byteps
    from dynamix_ps.comm.byteps.torch_comm import torch_comm

    if "HELD" in environment:
        exchange = byteps.Exchange

        def begin_sums(*arguments: Any) -> byteps.Exchange:
            pipe.send("connected")
            assert pipe.recv() == "go on"
            return exchange(*arguments)

        byteps.Exchange = begin_sums  # type: ignore[assignment,misc]
    comm = torch_comm()
    comm.init()
    elastic = comm.elastic
    assert elastic is not None
    mine, total = torch.zeros(VALUES), torch.zeros(VALUES)
    if not comm.late:
        comm.declare("other")
        comm.declare("values")
    pipe.send("ready")
    handle = -1
    while True:
        command, *arguments = pipe.recv()
        answer: Any = None
        if command == "push":
            mine[:] = 16.0**comm.rank
            handle = comm.push_pull_into("values", mine, total)
        elif command == "sum":
            assert comm.wait(handle, PATIENCE_S), elastic.status()
            answer = total.unique().tolist()
        elif command == "gather":
            answer = comm.gather_present("told", bytes([comm.rank]))
        elif command == "known":
            answer = comm.known()
        elif command == "adopt":
            comm.adopt(*arguments)
        elif command == "end":
            comm.shutdown()
            pipe.send(None)
            return
        else:
            answer = getattr(elastic, command)(*arguments)
        pipe.send(answer)


class Job:
    """The processes, by name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pipes: dict[str, Connection] = {}
        self.processes: dict[str, Any] = {}
        self._generation = self._starts = 0
        self._lost_servers: list[int] = []
        self._common = {
            **OURS,
            "DYNAMIX_ELASTIC": "1",
            "BYTEPS_FORCE_DISTRIBUTED": "1",
            "NVIDIA_VISIBLE_DEVICES": "0",
            "OMP_NUM_THREADS": "1",
            "DMLC_NUM_WORKER": str(WORKERS),
            "DMLC_NUM_SERVER": str(SERVERS),
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_NODE_HOST": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(free_port()),
        }
        self.start_scheduler()
        for number in range(SERVERS):
            self.start_server(number)
        for rank in range(WORKERS):
            self.start_worker(rank)
        self.expect_ready(range(WORKERS))

    def start_scheduler(self) -> None:
        """At first, or in the place of one that was killed."""
        self._start("scheduler", multiprocessing.get_context("fork"), serve, {**self._common, "DMLC_ROLE": "scheduler"})

    def kill_scheduler(self) -> None:
        self._kill("scheduler")

    def start_server(self, number: int) -> None:
        own = {"DMLC_ROLE": "server", "DMLC_SERVER_ID": str(number)}
        self._start(f"server-{number}", multiprocessing.get_context("fork"), serve, {**self._common, **own})

    def start_worker(self, rank: int, starts: int = 0, **more: str) -> None:
        """`starts`: how often it was started before. With HELD, it waits for a word before it begins with sums."""
        self._starts += 1
        sockets = self._folder / str(self._starts)
        sockets.mkdir()
        own = {"DMLC_ROLE": "worker", "DMLC_WORKER_ID": str(rank), "BYTEPS_LOCAL_RANK": "0", "BYTEPS_LOCAL_SIZE": "1"}
        own |= {"BYTEPS_SOCKET_PATH": str(sockets), "BYTEPS_SHM_PREFIX": f"dxlate{os.getpid()}-{self._starts}-"}
        own |= {"DYNAMIX_STARTS": str(starts), **more}
        preloaded = multiprocessing.get_context("forkserver")
        preloaded.set_forkserver_preload(["torch", "byteps.torch", "tests.integration.membership.test_late_workers"])
        self._start(f"worker-{rank}", preloaded, work, {**self._common, **own})

    def _start(self, name: str, context: Any, target: Any, environment: dict[str, str]) -> None:
        ours, theirs = context.Pipe()
        process = context.Process(target=target, args=(environment, theirs), daemon=True)
        process.start()
        theirs.close()
        self._pipes[name], self.processes[name] = ours, process

    def expect_ready(self, ranks: Iterable[int]) -> None:
        assert [self._next(f"worker-{rank}") for rank in ranks] == ["ready"] * len(list(ranks))

    def _next(self, name: str) -> Any:
        assert self._pipes[name].poll(PATIENCE_S), f"{name} says nothing"
        return self._pipes[name].recv()

    def hears(self, rank: int) -> Any:
        """The next word of a worker."""
        return self._next(f"worker-{rank}")

    def says(self, rank: int, word: str) -> None:
        self._pipes[f"worker-{rank}"].send(word)

    def say(self, ranks: Iterable[int], *command: Any) -> None:
        """What `tell` says, for answers that may take long."""
        for rank in ranks:
            self._pipes[f"worker-{rank}"].send(command)

    def tell(self, ranks: Iterable[int], *command: Any) -> list[Any]:
        """What these workers answer, in their order. All do it at once."""
        ranks = list(ranks)
        self.say(ranks, *command)
        return [self._next(f"worker-{rank}") for rank in ranks]

    def round(self, ranks: Iterable[int]) -> None:
        """All of these make a round, and the sum is of all of them and of nobody else."""
        ranks = list(ranks)
        self.tell(ranks, "push")
        assert self.tell(ranks, "sum") == [[float(sum(16**rank for rank in ranks))]] * len(ranks)

    def kill(self, rank: int, left: list[int], hear: tuple[str, ...] = ("scheduler",)) -> None:
        """Kill a worker between two rounds, and let the others go on without it. All servers hear of it, and `hear`."""
        self._kill(f"worker-{rank}")
        for name in (*hear, *self._servers_left()):
            assert self._next(name) == ("lost", "worker", rank)
        self._go_on(left)

    def kill_server(self, number: int, left: list[int]) -> None:
        """The same with a server: these workers go on without it."""
        self._kill(f"server-{number}")
        assert self._next("scheduler") == ("lost", "server", number)
        self._lost_servers.append(number)
        self._go_on(left)

    def _kill(self, name: str) -> None:
        os.kill(self.processes[name].pid, signal.SIGKILL)
        self.processes[name].join(PATIENCE_S)

    def _servers_left(self) -> list[str]:
        return [f"server-{number}" for number in range(SERVERS) if number not in self._lost_servers]

    def _go_on(self, left: list[int]) -> None:
        self._generation += 1
        (first,) = {status.first_incomplete for status in self.tell(left, "freeze")}
        for name in self._servers_left():
            self._pipes[name].send((self._generation, first))
            assert self._next(name) == ("fenced", self._generation)
        self.tell(left, "resume", self._generation, first, len(left), self._lost_servers)

    def admit(self, rank: int, others: list[int]) -> None:
        """The late worker takes part from the coming round on."""
        (known,) = self.tell([others[0]], "known")
        (status,) = self.tell([others[0]], "status")
        self.tell([rank], "adopt", known)
        self.tell([rank], "enter", self._generation, status.first_incomplete, len(others) + 1, self._lost_servers)
        self.tell(others, "expect", len(others) + 1)

    def silent(self, server: int) -> frozenset[int]:
        """Workers that this server takes for silent. It asks them whether they live."""
        self._pipes[f"server-{server}"].send(("silent", QUIET_S))
        kind, found = self._next(f"server-{server}")
        assert kind == "silent"
        return frozenset(found)

    def admit_server(self, number: int, workers: list[int]) -> None:
        """The late server has keys from the coming round on."""
        (first,) = {status.first_incomplete for status in self.tell(workers, "status")}
        self._pipes[f"server-{number}"].send((self._generation, first))
        assert self._next(f"server-{number}") == ("fenced", self._generation)
        limit_s = time.monotonic() + PATIENCE_S
        while not all(self.tell(workers, "answers", number, 1.0)):
            assert time.monotonic() < limit_s, f"server {number} does not answer"
        self._lost_servers.remove(number)
        self.tell(workers, "use_servers_without", self._lost_servers)

    def ends(self, workers: list[int]) -> None:
        """These workers end, and all of the job with them, in order."""
        self.tell(workers, "end")
        for process in self.processes.values():
            process.join(PATIENCE_S)
        assert {name: process.exitcode for name, process in self.processes.items()} == dict.fromkeys(self.processes, 0)

    def close(self) -> None:
        for process in self.processes.values():
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
            process.join(PATIENCE_S)
        for pipe in self._pipes.values():
            pipe.close()


@contextmanager
def job() -> Iterator[Job]:
    with tempfile.TemporaryDirectory(prefix="dx-late-") as folder:
        one = Job(Path(folder))
        try:
            yield one
        finally:
            one.close()


def test_a_worker_comes_in_the_place_of_one_that_was_killed() -> None:
    with job() as one:
        one.round([0, 1, 2])
        one.kill(1, left=[0, 2])
        one.round([0, 2])
        one.start_worker(1, starts=1)
        one.round([0, 2])  # it prepares beside training
        one.expect_ready([1])
        one.round([0, 2])
        one.admit(1, others=[0, 2])
        one.round([0, 1, 2])
        told = one.tell([0, 1, 2], "gather")  # under a name that nobody had before
        assert told == [{rank: bytes([rank]) for rank in range(WORKERS)}] * WORKERS
        # that one is lost too, and so is the first worker; both places are taken again
        one.kill(1, left=[0, 2])
        one.round([0, 2])
        one.kill(0, left=[2])
        for rank, others in ((1, [2]), (0, [1, 2])):
            one.start_worker(rank, starts=2)
            one.expect_ready([rank])
            one.round(others)
            one.admit(rank, others)
            one.round(sorted([rank, *others]))
        one.ends([0, 1, 2])


def test_a_worker_that_comes_after_a_server_was_lost_pushes_to_the_one_that_is_left() -> None:
    with job() as one:
        one.round([0, 1, 2])
        one.kill_server(0, left=[0, 1, 2])
        one.round([0, 1, 2])
        one.kill(1, left=[0, 2])
        one.round([0, 2])
        one.start_worker(1, starts=1)
        one.expect_ready([1])
        one.admit(1, others=[0, 2])
        one.round([0, 1, 2])
        del one.processes["server-0"]
        one.ends([0, 1, 2])


def test_one_that_has_not_begun_with_sums_answers_whether_it_lives() -> None:
    with job() as one:
        one.kill(1, left=[0, 2])
        one.start_worker(1, starts=1, HELD="1")
        assert one.hears(1) == "connected"
        one.tell([0], "push")
        stopped = [one.processes[f"worker-{rank}"].pid for rank in (1, 2)]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: one.silent(0) == {1, 2}, "both to count as silent", PATIENCE_S)  # the server asks both
        os.kill(stopped[0], signal.SIGCONT)
        wait_for(lambda: one.silent(0) == {2}, "the one that comes to answer", PATIENCE_S)
        os.kill(stopped[1], signal.SIGCONT)
        one.says(1, "go on")
        one.expect_ready([1])
        one.tell([2], "push")
        assert one.tell([0, 2], "sum") == [[257.0]] * 2
        one.admit(1, others=[0, 2])
        one.round([0, 1, 2])


def test_a_server_comes_in_the_place_of_one_that_was_killed_and_sums_alone_later() -> None:
    everybody = [0, 1, 2]
    with job() as one:
        one.round(everybody)
        for lost, other in ((1, 0), (0, 1)):
            one.kill_server(lost, left=everybody)
            one.round(everybody)
            one.start_server(lost)
            one.round(everybody)  # it prepares beside training
            one.admit_server(lost, everybody)
            one.round(everybody)
            one.round(everybody)
            one.kill_server(other, left=everybody)
            one.round(everybody)
            one.start_server(other)
            one.admit_server(other, everybody)
            one.round(everybody)
        one.kill(1, left=[0, 2])
        one.round([0, 2])
        one.start_worker(1, starts=1)  # it knows them from the scheduler
        one.expect_ready([1])
        one.admit(1, others=[0, 2])
        one.round(everybody)
        one.ends(everybody)


def test_one_that_comes_and_is_gone_again_at_once_harms_nobody() -> None:
    """Servers and scheduler may hear of it after its end."""
    with job() as one:
        one.kill(1, left=[0, 2])
        for _ in range(3):
            one.start_worker(1, starts=1)
            os.kill(one.processes["worker-1"].pid, signal.SIGKILL)
            one.processes["worker-1"].join(PATIENCE_S)
        one.round([0, 2])
        one.start_worker(1, starts=2)
        one.expect_ready([1])
        one.admit(1, others=[0, 2])
        one.round([0, 1, 2])
        one.tell([0, 1, 2], "end")
