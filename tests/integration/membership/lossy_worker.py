"""One worker of lossy_job.py: makes rounds of sums, checks each, and dies where its plan says so."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.comm.byteps.comm import BytePSComm

POINTS = ("before-pushes", "between-pushes", "after-pushes", "after-first-answer", "after-step")
INT_VALUES = (1, 1003, 70_000)
FLOAT_VALUES = (5, 600_000)
WAIT_S = 60.0
LAST_ANSWERS_S = 0.5  # what a lost server has sent may be on its way for so long
_DRIFT = (1 + np.arange(64) / 1000).astype(np.float32)  # most of them are no numbers in few bits


@dataclass(frozen=True, slots=True)
class Work:
    """What a worker does, and where it dies: a round and one of POINTS.

    Attributes:
        life: if not None, the worker forks a child like a data loader, which lives until the other end is closed.
    """

    rank: int
    rounds: int
    death: tuple[int, str] | None = None
    life: Connection | None = None


@dataclass(slots=True)
class Done:
    """What a worker has seen: who contributed to each round, as bits, and what was wrong."""

    contributors: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def unit(rank: int, dtype: np.dtype[Any]) -> int:
    """The contribution of a worker, apart from a factor below the distance of units: a sum tells who is in it."""
    return int((256 if dtype.kind == "i" else 16) ** rank)


def factors(turn: int, number: int, length: int, dtype: np.dtype[Any]) -> NDArray[np.int64]:
    return 1 + (np.arange(length, dtype=np.int64) + turn * 7 + number) % (100 if dtype.kind == "i" else 7)


def contributors(total: int, factor: int, dtype: np.dtype[Any]) -> int:
    """Whose contributions are in a sum, as bits; -1: it is no sum of whole contributions."""
    base, found, rank = 256 if dtype.kind == "i" else 16, 0, 0
    while total:
        total, digit = divmod(total, base)
        if digit not in (0, factor):
            return -1
        found |= (digit != 0) << rank
        rank += 1
    return found


class Buffer:
    """One buffer whose sums go to another place, or take its place."""

    def __init__(self, number: int, length: int, dtype: str, in_place: bool) -> None:
        self.name, self.number, self.in_place = f"buffer-{number}", number, in_place
        self.mine = np.zeros(length, dtype)
        self.sum = self.mine if in_place else np.zeros(length, dtype)

    def begin(self, turn: int, rank: int) -> int:
        """So many values of this worker do not take part."""
        return (turn * 13 * (rank + 1)) % len(self.mine) if self.number % 2 else 0

    def fill(self, turn: int, rank: int) -> None:
        self.mine[:] = factors(turn, self.number, len(self.mine), self.mine.dtype) * unit(rank, self.mine.dtype)

    def check(self, turn: int, rank: int, workers: int) -> tuple[int, bool]:
        """Who contributed, and whether each value is the sum of exactly their contributions."""
        expected = factors(turn, self.number, len(self.sum), self.sum.dtype)
        found = contributors(int(self.sum[-1]), int(expected[-1]), self.sum.dtype)
        own = self.begin(turn, rank)
        total = np.zeros(len(self.sum), np.int64)
        for other in range(workers):
            if found >> other & 1:
                begin = self.begin(turn, other)
                total[begin:] += expected[begin:] * unit(other, self.sum.dtype)
        return found, found >= 0 and bool((self.sum[own:] == total[own:]).all())


class LossyWorker:
    """The training thread of the worker."""

    def __init__(self, comm: BytePSComm, work: Work, workers: int) -> None:
        import torch

        self._comm, self._work, self._workers = comm, work, workers
        self._tensor = torch.from_numpy
        sizes = [*((length, "int64") for length in INT_VALUES), *((length, "float32") for length in FLOAT_VALUES)]
        self._buffers = [Buffer(i, length, dtype, in_place=i == 1) for i, (length, dtype) in enumerate(sizes)]
        self._drift, self._drift_sum = np.zeros(64, np.float32), np.zeros(64, np.float32)
        for buffer in self._buffers:  # the smallest are in a hurry
            comm.declare(buffer.name, priority=len(buffer.mine))
        comm.declare("drift", rounded=64)
        comm.declare("total")

    def run(self) -> Done:
        done = Done()
        drift, drifting = np.zeros(64), 0
        for turn in range(self._work.rounds):
            found = self._round(turn, done)
            drift += self._drift_sum
            drifting += found & 1  # worker 0 alone contributes to it
            if turn % 10 == 0:  # a sum outside of training
                total = int(self._comm.total("total", np.array([256**self._work.rank], np.int64))[0])
                if contributors(total, 1, np.dtype(np.int64)) & ~found:
                    done.wrong.append(f"round {turn}: lost workers are in the total {total:x}")
            done.contributors.append(found)
            self._die(turn, "after-step")
        if (error := np.abs(drift - drifting * _DRIFT.astype(np.float64)).max()) > 0.005:
            done.wrong.append(f"sums of rounded values drift by {error}")
        return done

    def _round(self, turn: int, done: Done) -> int:
        rank = self._work.rank
        self._die(turn, "before-pushes")
        handles = []
        for buffer in self._buffers:
            buffer.fill(turn, rank)
            mine, begin = self._tensor(buffer.mine), buffer.begin(turn, rank)
            if buffer.in_place:
                handles.append(self._comm.push_pull(buffer.name, mine, begin))
            else:
                handles.append(self._comm.push_pull_into(buffer.name, mine, self._tensor(buffer.sum), begin))
            if buffer.number == len(self._buffers) // 2:
                self._die(turn, "between-pushes")
        self._drift[:] = _DRIFT if rank == 0 else 0
        handles.append(self._comm.push_pull_into("drift", self._tensor(self._drift), self._tensor(self._drift_sum)))
        self._die(turn, "after-pushes")
        if self._work.death == (turn, "after-first-answer"):
            self._wait_for_first_answer()
            self._die(turn, "after-first-answer")
        for handle in handles:
            if not self._comm.wait(handle, WAIT_S):
                elastic = self._comm.elastic
                raise TimeoutError(f"worker {rank}, round {turn}: {elastic and elastic.status()}")
        seen = {}
        for buffer in self._buffers:
            seen[buffer.name], right = buffer.check(turn, rank, self._workers)
            if not right:
                done.wrong.append(f"round {turn}, {buffer.name}: {buffer.sum[-3:]}")
        if len(set(seen.values())) != 1:
            done.wrong.append(f"round {turn}: other contributors in other buffers, {seen}")
        return min(seen.values())

    def _wait_for_first_answer(self) -> None:
        elastic = self._comm.elastic
        assert elastic is not None
        deadline = time.monotonic() + 5.0
        while len(elastic.status().missing) > len(self._buffers) and time.monotonic() < deadline:
            time.sleep(0.0002)

    def _die(self, turn: int, point: str) -> None:
        if self._work.death == (turn, point):
            os.kill(os.getpid(), signal.SIGKILL)


class Pipe:
    """The way to the coordinator, for several threads."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._mu = connection, threading.Lock()
        self.recv = connection.recv

    def send(self, message: Any) -> None:
        with self._mu:
            self._connection.send(message)


def control(comm: BytePSComm, pipe: Pipe) -> None:
    """Do what the coordinator says, beside training."""
    elastic = comm.elastic
    assert elastic is not None

    def look(lost_servers: list[int]) -> None:
        if elastic.unanswered() & set(lost_servers):
            pipe.send(("cut_off",))

    while True:
        try:
            command, *arguments = pipe.recv()
        except EOFError:
            return
        if command == "freeze":
            pipe.send(("status", arguments[0], elastic.freeze()))
        else:
            elastic.resume(*arguments)
            threading.Timer(LAST_ANSWERS_S, look, arguments[-1:]).start()


def main(environment: dict[str, str], connection: Connection, work: Work) -> None:
    """The whole life of the worker's process."""
    os.environ.update(environment)
    from dynamix_ps.comm.byteps.torch_comm import torch_comm

    comm = torch_comm()
    comm.init()
    if work.life is not None and os.fork() == 0:
        work.life.poll(None)
        os._exit(0)
    pipe = Pipe(connection)
    threading.Thread(target=control, args=(comm, pipe), daemon=True).start()
    pipe.send(("ready",))
    worker = LossyWorker(comm, work, int(environment["DMLC_NUM_WORKER"]))
    pipe.send(("done", worker.run()))
    comm.shutdown()
