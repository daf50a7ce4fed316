"""Jobs of real BytePS processes that are killed at random, with a coordinator: test_workers_lost.py.

    python -m tests.integration.membership.lossy_job --jobs 100 --seed 1

Every worker makes rounds of sums over buffers of which the values tell who contributed. Some workers and servers are
killed: at a random time, at a named point of their loop, while the coordinator decides. Others are stopped for a while,
so that some are ahead. A worker that lacks a sum which died with its server is killed too. What must hold is in
`Job.check`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from benchmarks.testbed.byteps_roles import OURS
from benchmarks.testbed.ports import free_port
from tests.integration.membership import lossy_worker
from tests.integration.membership.lossy_worker import POINTS, Done, Work

ROUNDS, SERVERS = 60, 3
LIMIT_S = 90.0
_PRELOAD = ["torch", "byteps.torch", "tests.integration.membership.lossy_worker"]
_PHASES = ("asking", "fencing", "resuming")


@dataclass(frozen=True, slots=True)
class Story:
    """What happens in a job: who is killed when, and who is stopped for a while."""

    workers: int
    wire: str
    kills_after_s: tuple[tuple[float, str], ...]  # and whom
    deaths: tuple[tuple[int, int, str], ...]  # which worker, in which round, at which point
    in_decision: tuple[tuple[str, str], ...]  # at which phase of a decision, and whom
    stops: tuple[tuple[float, int, float], ...]  # when, whom, for how long
    forks: bool = False  # workers have children that outlive them

    @classmethod
    def random(cls, seed: int, rounds: int = ROUNDS) -> Story:
        chance = random.Random(seed)
        workers = chance.randint(3, 5)
        victims = chance.sample(range(1, workers), chance.randint(1, workers - 1))
        timed, deaths, in_decision = [], [], []
        for number, victim in enumerate(victims):
            way = chance.random()
            if way < 0.5 or (number == 0 and way > 0.8):
                deaths.append((victim, chance.randrange(rounds), chance.choice(POINTS)))
            elif way < 0.8:
                timed.append((chance.uniform(0.0, 1.5), f"worker-{victim}"))
            else:
                in_decision.append((chance.choice(_PHASES), f"worker-{victim}"))
        for server in chance.sample(range(SERVERS), chance.randint(0, SERVERS - 1)):
            if chance.random() < 0.7:
                timed.append((chance.uniform(0.0, 1.5), f"server-{server}"))
            else:
                in_decision.append((chance.choice(_PHASES), f"server-{server}"))
        stops = [(chance.uniform(0.0, 2.0), chance.randrange(workers), chance.uniform(0.01, 0.3)) for _ in range(4)]
        wire, forks = chance.choice(("float32", "bf16", "int8")), chance.random() < 0.3
        return cls(workers, wire, tuple(timed), tuple(deaths), tuple(in_decision), tuple(sorted(stops)), forks)


@dataclass(slots=True)
class Outcome:
    """How a job went.

    Attributes:
        wrong: what must not happen and did.
        lost: workers that were lost, in the order in which they were missed.
        lost_servers: servers.
        cut_off: workers that lacked a sum which died with its server.
        decisions: decisions on losses that all workers resumed with.
        apart: those of them in which workers were in different rounds.
    """

    wrong: list[str] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    lost_servers: list[int] = field(default_factory=list)
    cut_off: list[int] = field(default_factory=list)
    decisions: int = 0
    apart: int = 0


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
                match pipe.recv():
                    case "silent", quiet_s:
                        pipe.send(("silent", server.silent(quiet_s)))
                    case generation, first:
                        server.fence(generation, first)
                        pipe.send(("fenced", generation))

    for thread in (tell, obey):
        threading.Thread(target=thread, daemon=True).start()
    import byteps.server  # noqa: F401  # serves


class Job:
    """The processes of one job, and their coordinator."""

    def __init__(self, story: Story, rounds: int = ROUNDS) -> None:
        self._story, self._rounds = story, rounds
        self._folder = tempfile.TemporaryDirectory(prefix="dx-lossy-")
        self._pipes: dict[str, Connection] = {}
        self._processes: dict[str, Any] = {}
        self._members = set(range(story.workers))
        self._memberships = [frozenset(self._members)]
        self._generation = 0
        self._ready: set[int] = set()
        self._done: dict[int, Done] = {}
        self._reports: set[tuple[str, tuple[str, int]]] = set()  # which server, or the scheduler, has missed whom
        self._in_decision = list(story.in_decision)
        self._killed: set[str] = set()
        self._life, self._end_of_life = multiprocessing.Pipe(duplex=False)
        self.outcome = Outcome()

    def __enter__(self) -> Job:
        common = {
            **OURS,
            "DYNAMIX_ELASTIC": "1",
            "DYNAMIX_WIRE": self._story.wire,
            "BYTEPS_FORCE_DISTRIBUTED": "1",
            "NVIDIA_VISIBLE_DEVICES": "0",
            "OMP_NUM_THREADS": "1",
            "DMLC_NUM_WORKER": str(self._story.workers),
            "DMLC_NUM_SERVER": str(SERVERS),
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_NODE_HOST": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(free_port()),
        }
        forked = multiprocessing.get_context("fork")
        for name in ("scheduler", *(f"server-{i}" for i in range(SERVERS))):
            role, _, number = name.partition("-")
            self._start(name, forked, serve, {**common, "DMLC_ROLE": role, "DMLC_SERVER_ID": number})
        preloaded = multiprocessing.get_context("forkserver")
        preloaded.set_forkserver_preload(_PRELOAD)
        deaths = {worker: (turn, point) for worker, turn, point in self._story.deaths}
        for rank in range(self._story.workers):
            sockets = Path(self._folder.name, f"sockets-{rank}")
            sockets.mkdir()
            own = {"DMLC_ROLE": "worker", "DMLC_WORKER_ID": str(rank), "BYTEPS_LOCAL_RANK": "0"}
            own |= {"BYTEPS_LOCAL_SIZE": "1", "BYTEPS_SOCKET_PATH": str(sockets)}
            own["BYTEPS_SHM_PREFIX"] = f"dxlossy{os.getpid()}-{id(self)}-{rank}-"
            work = Work(rank, self._rounds, deaths.get(rank), self._life if self._story.forks else None)
            self._start(f"worker-{rank}", preloaded, lossy_worker.main, {**common, **own}, work)
        return self

    def _start(self, name: str, context: Any, target: Any, *arguments: Any) -> None:
        ours, theirs = context.Pipe()
        environment, *rest = arguments
        process = context.Process(target=target, args=(environment, theirs, *rest), daemon=True)
        process.start()
        theirs.close()
        self._pipes[name], self._processes[name] = ours, process

    def __exit__(self, *error: object) -> None:
        for process in self._processes.values():
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
            process.join(10)
        for pipe in (*self._pipes.values(), self._life, self._end_of_life):
            pipe.close()
        self._folder.cleanup()

    def kill(self, name: str) -> None:
        process = self._processes[name]
        if process.is_alive() and name not in (f"worker-{rank}" for rank in self._done):
            self._killed.add(name)
            os.kill(process.pid, signal.SIGKILL)

    def run(self) -> Outcome:
        """Until every process has ended by itself, or the time is over."""
        deadline = time.monotonic() + LIMIT_S
        threads = [threading.Thread(target=self._disturb, daemon=True)]
        while self._done.keys() & self._members < self._members and time.monotonic() < deadline:
            if failed := [name for name, process in self._processes.items() if process.exitcode not in (None, 0, -9)]:
                self.outcome.wrong.append(f"{failed} failed")
                return self.outcome
            for name, message in self._messages(0.2):
                self._handle(name, message)
            if threads and len(self._ready) == self._story.workers:
                threads.pop().start()
            if self._missed():
                self._decide()
        self._end(deadline)
        self._check()
        return self.outcome

    def _disturb(self) -> None:
        """Kill and stop workers as the story tells."""
        events = [(at_s, "kill", name, 0.0) for at_s, name in self._story.kills_after_s]
        events += [(at_s, "stop", f"worker-{rank}", for_s) for at_s, rank, for_s in self._story.stops]
        began_s = time.monotonic()
        for at_s, what, name, for_s in sorted(events):
            time.sleep(max(0.0, began_s + at_s - time.monotonic()))
            if what == "kill":
                self.kill(name)
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._processes[name].pid, signal.SIGSTOP)
                time.sleep(for_s)
                os.kill(self._processes[name].pid, signal.SIGCONT)

    def _messages(self, timeout_s: float) -> Iterator[tuple[str, Any]]:
        names = {pipe: name for name, pipe in self._pipes.items()}
        for pipe in wait(list(names), timeout_s):
            assert isinstance(pipe, Connection)
            try:
                yield names[pipe], pipe.recv()
            except (EOFError, OSError):
                del self._pipes[names[pipe]]
                pipe.close()

    def _handle(self, name: str, message: Any) -> None:
        what, *rest = message
        if what == "ready":
            self._ready.add(int(name.partition("-")[2]))
        elif what == "done":
            self._done[int(name.partition("-")[2])] = rest[0]
        elif what == "lost":
            kind, number = rest
            if kind != "scheduler":
                self._reports.add((name, (kind, number)))
        elif what == "cut_off" and name not in self._killed:
            self.outcome.cut_off.append(int(name.partition("-")[2]))
            self.kill(name)

    def _missed(self) -> set[tuple[str, int]]:
        """Who is lost and still counts as a member."""
        counted = {("worker", rank) for rank in (*self.outcome.lost, *self._done)}
        return {lost for _, lost in self._reports} - counted - {("server", one) for one in self.outcome.lost_servers}

    def _send(self, name: str, message: Any) -> None:
        with contextlib.suppress(OSError, KeyError):
            self._pipes[name].send(message)

    def _decide(self) -> None:
        """Freeze, fence, resume; anew where another one is lost meanwhile."""
        for kind, number in sorted(self._missed()):
            (self.outcome.lost if kind == "worker" else self.outcome.lost_servers).append(number)
        self._members -= set(self.outcome.lost)
        self._generation += 1
        generation, lost_servers = self._generation, self.outcome.lost_servers
        members = [f"worker-{rank}" for rank in sorted(self._members)]
        servers = [f"server-{i}" for i in range(SERVERS) if i not in lost_servers]
        for name in members:
            self._send(name, ("freeze", generation))
        self._kill_in("asking")
        told = self._collect("status", members)
        if told is None:
            return self._decide()
        rounds = [status.first_incomplete for status in told.values()]
        first = max(rounds)
        for name in servers:
            self._send(name, (generation, first))
        self._kill_in("fencing")
        if self._collect("fenced", servers) is None:
            return self._decide()
        for name in members:
            self._send(name, ("resume", generation, first, len(members), list(lost_servers)))
        self._kill_in("resuming")
        self._memberships.append(frozenset(self._members))
        self.outcome.decisions += 1
        self.outcome.apart += min(rounds) != first
        return None

    def _kill_in(self, phase: str) -> None:
        for event in [each for each in self._in_decision if each[0] == phase][:1]:
            self._in_decision.remove(event)
            self.kill(event[1])

    def _collect(self, what: str, names: list[str]) -> dict[str, Any] | None:
        """What all of these answer to this decision; None: another worker was lost meanwhile."""
        told: dict[str, Any] = {}
        deadline = time.monotonic() + LIMIT_S
        while len(told) < len(names):
            assert time.monotonic() < deadline, f"no {what} from {set(names) - told.keys()}"
            for name, message in self._messages(0.2):
                if message[0] == what and message[1] == self._generation:
                    told[name] = message[2:][0] if message[2:] else None
                else:
                    self._handle(name, message)
            if self._missed():
                return None
        return told

    def _end(self, deadline: float) -> None:
        for name, process in self._processes.items():
            process.join(max(0.1, min(20.0, deadline - time.monotonic())))
            role, _, number = name.partition("-")
            dead = name in self._killed or (role == "worker" and int(number) not in self._members)
            if process.exitcode != (-signal.SIGKILL if dead else 0):
                self.outcome.wrong.append(f"{name} ended with {process.exitcode}")
        while waiting := list(self._messages(0.0)):
            for name, message in waiting:
                self._handle(name, message)
        lost = {("worker", rank) for rank in self.outcome.lost}
        self._check_reports("scheduler", lost | {("server", number) for number in self.outcome.lost_servers})
        for number in set(range(SERVERS)).difference(self.outcome.lost_servers):
            self._check_reports(f"server-{number}", lost)

    def _check_reports(self, name: str, lost: set[tuple[str, int]]) -> None:
        if missing := sorted(one for one in lost if (name, one) not in self._reports):
            self.outcome.wrong.append(f"{name} has not missed {missing}")

    def _check(self) -> None:
        wrong = self.outcome.wrong
        left = sum(1 << rank for rank in self._members)
        possible = {sum(1 << rank for rank in members) for members in self._memberships}
        histories = {tuple(self._done[rank].contributors) for rank in self._members if rank in self._done}
        for rank in sorted(self._members):
            wrong += (
                [f"worker {rank}: {what}" for what in self._done[rank].wrong[:3]]
                if rank in self._done
                else [f"worker {rank} is not done"]
            )
        if len(histories) > 1:
            wrong.append("workers have seen different contributors")
        for history in histories:
            if len(history) != self._rounds:
                wrong.append(f"{len(history)} of {self._rounds} rounds")
            if any(each & left != left or each not in possible for each in history):
                wrong.append(f"contributors {sorted(set(history))}, members were {sorted(possible)}")
            if any(after & ~before for before, after in itertools.pairwise(history)):
                wrong.append(f"a lost worker contributes again: {history}")


def main() -> int:
    """Run jobs with random stories."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    failed = losses = decisions = apart = 0
    for seed in range(options.seed, options.seed + options.jobs):
        story, began_s = Story.random(seed, options.rounds), time.monotonic()
        with Job(story, options.rounds) as job:
            outcome = job.run()
        losses, decisions, apart = losses + len(outcome.lost), decisions + outcome.decisions, apart + outcome.apart
        failed += bool(outcome.wrong)
        print(
            f"seed {seed}: {time.monotonic() - began_s:.1f} s, {outcome} {story if outcome.wrong else ''}", flush=True
        )
    print(f"{options.jobs} jobs, {failed} failed, {losses} losses, {decisions} decisions, {apart} with workers apart")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
