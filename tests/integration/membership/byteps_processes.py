"""Real BytePS processes that are killed and come at a word of the test, as is each of their rounds.

So nothing depends on time. Every sum is checked value by value.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.testbed.byteps_roles import OURS
from benchmarks.testbed.ports import free_port

WORKERS, SERVERS, VALUES, NUMBERS = 3, 2, 300_000, 1000
PATIENCE_S, QUIET_S = 60.0, 1.0


def serve(environment: dict[str, str], pipe: Connection) -> None:
    """The life of a server's or the scheduler's process."""
    os.environ.update(environment)
    from dynamix_ps.comm.byteps.elastic import ElasticServer

    server = ElasticServer()

    def tell() -> None:
        while True:
            if (loss := server.next_loss(1.0)) is not None:
                with contextlib.suppress(OSError):
                    pipe.send(("lost", loss.kind, loss.rank))

    def obey() -> None:
        with contextlib.suppress(EOFError):
            while True:
                command, *arguments = pipe.recv()
                pipe.send((command, getattr(server, command)(*arguments)))

    for thread in (tell, obey):
        threading.Thread(target=thread, daemon=True).start()
    import byteps.server  # noqa: F401  # serves


def begin(rank: int) -> int:
    """So many of the numbers of this worker do not take part."""
    return 13 * (rank + 1)


def work(environment: dict[str, str], pipe: Connection, life: Connection) -> None:
    """The life of a worker's process: it does what the test says, one thing after the other.

    It has a child like a data loader, which lives until the other end of `life` is closed.
    """
    os.environ.update(environment)
    import torch

    from dynamix_ps.comm.byteps.torch_comm import torch_comm

    comm = torch_comm()
    comm.init()
    elastic = comm.elastic
    assert elastic is not None
    if os.fork() == 0:
        life.poll(None)
        os._exit(0)
    mine, total, numbers = torch.zeros(VALUES), torch.zeros(VALUES), torch.zeros(NUMBERS, dtype=torch.int64)
    if not comm.late:
        comm.declare("numbers")
        comm.declare("values")
    pipe.send("ready")
    handles: dict[str, int] = {}
    while True:
        command, *arguments = pipe.recv()
        answer: Any = None
        if command == "push":
            numbers[:] = mine[:] = 16**comm.rank
            handles = {"numbers": comm.push_pull("numbers", numbers, begin(comm.rank))}
            if "values" in arguments:
                handles["values"] = comm.push_pull_into("values", mine, total)
        elif command == "sum":
            for name, handle in handles.items():
                assert comm.wait(handle, PATIENCE_S), (name, elastic.status())
            answer = total.unique().tolist()
            expected = torch.zeros_like(numbers)
            for rank in range(WORKERS):
                expected[begin(rank) :] += int(total[0]) & 1 << 4 * rank
            assert (numbers[begin(comm.rank) :] == expected[begin(comm.rank) :]).all(), numbers
        elif command == "end":
            comm.shutdown()
            pipe.send(None)
            return
        else:
            answer = getattr(elastic if hasattr(elastic, command) else comm, command)(*arguments)
        pipe.send(answer)


class Job:
    """The processes, by name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pipes: dict[str, Connection] = {}
        self.processes: dict[str, Any] = {}
        self._generation = self._starts = 0
        self._servers = list(range(SERVERS))  # that are left
        self._killed: set[str] = set()
        self._life, self._end_of_life = multiprocessing.Pipe(duplex=False)
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
        for number in self._servers:
            own = {"DMLC_ROLE": "server", "DMLC_SERVER_ID": str(number)}
            self._start(f"server-{number}", multiprocessing.get_context("fork"), serve, own)
        for rank in range(WORKERS):
            self.start_worker(rank)
        assert [self.hears(rank) for rank in range(WORKERS)] == ["ready"] * WORKERS

    def start_scheduler(self) -> None:
        """At first, or in the place of one that was killed."""
        self._start("scheduler", multiprocessing.get_context("fork"), serve, {"DMLC_ROLE": "scheduler"})

    def start_worker(self, rank: int, starts: int = 0) -> None:
        """`starts`: how often it was started before. It says "ready"."""
        self._starts += 1
        sockets = self._folder / str(self._starts)
        sockets.mkdir()
        own = {"DMLC_ROLE": "worker", "DMLC_WORKER_ID": str(rank), "BYTEPS_LOCAL_RANK": "0", "BYTEPS_LOCAL_SIZE": "1"}
        own |= {"BYTEPS_SOCKET_PATH": str(sockets), "BYTEPS_SHM_PREFIX": f"dxlate{os.getpid()}-{self._starts}-"}
        preloaded = multiprocessing.get_context("forkserver")
        preloaded.set_forkserver_preload(["torch", "byteps.torch", "tests.integration.membership.byteps_processes"])
        self._start(f"worker-{rank}", preloaded, work, {"DYNAMIX_STARTS": str(starts), **own}, self._life)

    def _start(self, name: str, context: Any, target: Any, own: dict[str, str], *more: Connection) -> None:
        ours, theirs = context.Pipe()
        process = context.Process(target=target, args=({**self._common, **own}, theirs, *more), daemon=True)
        process.start()
        theirs.close()
        self._pipes[name], self.processes[name] = ours, process
        self._killed.discard(name)

    def _next(self, name: str) -> Any:
        assert self._pipes[name].poll(PATIENCE_S), f"{name} says nothing"
        return self._pipes[name].recv()

    def hears(self, rank: int) -> Any:
        """The next word of a worker."""
        return self._next(f"worker-{rank}")

    def say(self, ranks: Sequence[int], *command: Any) -> None:
        """What `tell` says, for answers that may take long."""
        for rank in ranks:
            self._pipes[f"worker-{rank}"].send(command)

    def tell(self, ranks: Sequence[int], *command: Any) -> list[Any]:
        """What these workers answer, in their order. All do it at once."""
        self.say(ranks, *command)
        return [self.hears(rank) for rank in ranks]

    def _tell_server(self, number: int, *command: Any) -> Any:
        name = f"server-{number}"
        self._pipes[name].send(command)
        kind, answer = self._next(name)
        assert kind == command[0]
        return answer

    def push(self, ranks: Sequence[int]) -> None:
        """All parts of a round."""
        self.tell(ranks, "push", "values")

    def round(self, ranks: Sequence[int]) -> None:
        """All of these make a round, and the sum is of all of them and of nobody else."""
        self.push(ranks)
        assert self.tell(ranks, "sum") == [[float(sum(16**rank for rank in ranks))]] * len(ranks)

    def kill(self, rank: int, left: Sequence[int], hear: tuple[str, ...] = ("scheduler",)) -> None:
        """Kill a worker, and let the others go on without it. All servers hear of it, and `hear`."""
        self.kill_process(f"worker-{rank}")
        self.go_on_without_worker(rank, left, hear)

    def go_on_without_worker(self, rank: int, left: Sequence[int], hear: tuple[str, ...] = ("scheduler",)) -> None:
        """It was killed."""
        for name in (*hear, *(f"server-{number}" for number in self._servers)):
            assert self._next(name) == ("lost", "worker", rank)
        self._go_on(left)

    def kill_server(self, number: int, left: Sequence[int]) -> None:
        """The same with a server: these workers go on without it."""
        self.kill_process(f"server-{number}")
        assert self._next("scheduler") == ("lost", "server", number)
        self._servers.remove(number)
        self._go_on(left)

    def kill_process(self, name: str) -> None:
        """Nobody goes on without it by that."""
        self._killed.add(name)
        os.kill(self.processes[name].pid, signal.SIGKILL)
        self.processes[name].join(PATIENCE_S)

    def signal(self, number: int, *names: str) -> None:
        for name in names:
            os.kill(self.processes[name].pid, number)

    def _lost_servers(self) -> list[int]:
        return [number for number in range(SERVERS) if number not in self._servers]

    def _go_on(self, left: Sequence[int]) -> None:
        self._generation += 1
        first = max(status.first_incomplete for status in self.tell(left, "freeze"))
        self.tell(left, "resume", self._generation, first, len(left), self._lost_servers())

    def admit(self, rank: int, others: Sequence[int]) -> None:
        """The late worker takes part from the coming round on."""
        (known,) = self.tell(others[:1], "known")
        (status,) = self.tell(others[:1], "status")
        self.tell([rank], "adopt", known)
        self.tell([rank], "enter", self._generation, status.first_incomplete, len(others) + 1, self._lost_servers())
        self.tell(others, "expect", len(others) + 1)

    def silent(self, server: int) -> frozenset[int]:
        """Workers that this server takes for silent. It asks them whether they live."""
        return frozenset(self._tell_server(server, "silent", QUIET_S))

    def ended(self) -> None:
        """All that were not killed end in order."""
        for process in self.processes.values():
            process.join(PATIENCE_S)
        codes = {name: one.exitcode for name, one in self.processes.items() if name not in self._killed}
        assert codes == dict.fromkeys(codes, 0)

    def close(self) -> None:
        for process in self.processes.values():
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
            process.join(PATIENCE_S)
        for pipe in (*self._pipes.values(), self._life, self._end_of_life):
            pipe.close()


@contextmanager
def job() -> Iterator[Job]:
    with tempfile.TemporaryDirectory(prefix="dx-late-") as folder:
        one = Job(Path(folder))
        try:
            yield one
        finally:
            one.close()
