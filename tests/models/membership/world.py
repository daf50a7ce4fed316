"""A job on a fake network, for the model of membership: any order of what can happen next, and faults between.

After each round of each worker the invariants are checked:

    contributors of a round, and so the state after it, are the same on all who are members or have left
    nobody steps a round of a generation that is fenced
    each sample is taken once

and at the end, that nothing is stuck, and that not all have left before the last round.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dynamix_ps.membership.coordinator import Coordinator
from dynamix_ps.membership.data_messages import AskState, Part
from dynamix_ps.membership.generations import MembershipSettings, Output
from dynamix_ps.membership.journal import Decided, Left, Lost, Record, as_plain, from_plain
from dynamix_ps.membership.messages import (
    COORDINATOR,
    Ended,
    Fence,
    Process,
    Processes,
    Ready,
    Refused,
    Resume,
    Suspect,
    Waiting,
)
from dynamix_ps.membership.schedule import Schedule
from dynamix_ps.membership.server import Server
from dynamix_ps.membership.worker import Worker
from tests.models.membership.network import Network
from tests.models.membership.ring import RingWorker
from tests.models.membership.training import Training

LAUNCHER = Process("launcher", 0, "")
TICK_S = 0.2
LEASE_S = 2.0
_MOST_ACTIONS = 50_000
_QUIET_TICKS = 60  # longer than any lease: then nothing will happen any more

CLOSED = "closed"  # in a channel: the connection has closed


class Violation(AssertionError):
    """The protocol is wrong."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is started."""

    workers: int = 4
    servers: int = 2
    keys: int = 3
    rounds: int = 6
    prefetch: int = 0
    worker_class: type[Worker] = Worker
    server_class: type[Server] = Server
    coordinator_class: type[Coordinator] = Coordinator


@dataclass
class Counts:
    """What happened, so that a study can tell that it was tried."""

    rounds: int = 0  # of all workers
    decisions: int = 0
    behind: int = 0  # workers that were one round behind at a decision
    states_taken: int = 0  # by those of them whose answer was lost with a server
    entered: int = 0
    followed: int = 0  # rounds of newcomers before they entered
    left: int = 0
    lost: int = 0
    restarts: int = 0


class World:
    """One run. `act` does one thing; `run` does all."""

    def __init__(self, job: Job, seed: int) -> None:
        self.job, self.rng = job, random.Random(seed)
        self.network = Network(self.rng)
        self.now_s = 0.0
        self.counts = Counts()
        self.disk: list[Record] = []
        self.workers: dict[Process, Worker] = {}
        self.servers: dict[Process, Server] = {}
        self.dead: set[Process] = set()
        self.truncate: Callable[[Output], int | None] = lambda output: None  # messages after which the coordinator dies
        self._states: dict[int, dict[Process, Training]] = {}  # after each round
        self._ticks = 0
        self._started = 0
        self.settings = MembershipSettings(job.workers, job.servers, lease_s=LEASE_S)
        self.coordinator = job.coordinator_class(self.settings)
        founders = frozenset(Process("worker", slot, "first") for slot in range(job.workers))
        for process in sorted(founders):
            self.start_worker(process, Training.begun(founders, job.prefetch))
        for slot in range(job.servers):
            self.start_server(Process("server", slot, "first"))

    # Processes.

    def start_worker(self, process: Process, state: Training | None = None) -> None:
        """A founder if it has a state, else a newcomer."""

        def step(before: Training, schedule: Schedule, parts: Mapping[Process, Part]) -> Training:
            after = before.step(schedule, parts)
            if self.workers[process].schedule is None:
                self.counts.followed += 1
                return after  # it follows, and is in no round yet
            return self._stepped(process, after)

        self.workers[process] = self.job.worker_class(
            process, self._place, step, lambda training: training.slice_of(process), state, self.job.prefetch
        )
        self.network.send(process, self.workers[process].join())

    def start_server(self, process: Process) -> None:
        """It joins."""
        self.servers[process] = self.job.server_class(process)
        self.network.send(process, self.servers[process].join())

    def newcomer(self, role: str) -> Process:
        """A name for one that comes: in a slot that is free, or whose process is dead."""
        self._started += 1
        table: Mapping[Process, Any] = self.workers if role == "worker" else self.servers
        taken = {process.slot for process in table if self.alive(process)}
        slot = min(set(range(len(taken) + 1)) - taken)
        return Process("worker" if role == "worker" else "server", slot, f"came {self._started}")

    def _place(self, servers: Processes) -> Mapping[int, Process]:
        order = sorted(servers)
        return {key: order[key % len(order)] for key in range(self.job.keys)}

    def alive(self, process: Process) -> bool:
        """Runs, and has not left or been refused."""
        table: Mapping[Process, Any] = self.workers if process.role == "worker" else self.servers
        return process not in self.dead and not getattr(table.get(process), "over", "")

    @property
    def training(self) -> list[Worker]:
        """Workers that run, have the state of the training and are not given up by the coordinator."""
        gone = self.coordinator.members.gone
        return [w for p, w in self.workers.items() if self.alive(p) and w.schedule and p not in gone]

    # What may happen next.

    def act(self) -> bool:
        """Do one of the things that can happen. Returns False if nothing is left but time."""
        if self.rng.random() < 0.02:
            self._tick()
        pushing = [worker for worker in self.workers.values() if self.alive(worker.process) and self._pushes(worker)]
        channels = self.network.deliverable()
        chosen = self.rng.randrange(len(pushing) + len(channels)) if pushing or channels else -1
        if chosen < 0:
            return False
        if chosen < len(pushing):
            worker = pushing[chosen]
            self.network.send(worker.process, worker.push())
            self._end_if_over(worker)
        else:
            sender, receiver = channel = channels[chosen - len(pushing)]
            self._deliver(sender, receiver, self.network.take(channel))
        return True

    def _pushes(self, worker: Worker) -> bool:
        if worker.current.part is None:
            worker.closing = worker.round >= self.job.rounds
        return worker.may_push

    def _deliver(self, sender: Process, receiver: Process, message: Any) -> None:
        if receiver == COORDINATOR:
            self.follow(self.coordinator.on_message(sender, message, self.now_s))
        elif not self.alive(receiver):
            return
        elif receiver.role == "worker":
            worker = self.workers[receiver]
            replies = worker.on_closed(sender) if message == CLOSED else worker.on_message(sender, message)
            self.counts.states_taken += sum(isinstance(reply, AskState) for _, reply in replies)
            self.counts.entered += sum(isinstance(reply, Ready) for _, reply in replies)
            if isinstance(message, Resume) and worker.schedule and worker.round < message.first_round:
                self.counts.behind += 1
            self.network.send(receiver, replies)
            self._end_if_over(worker)
        elif not isinstance(message, Ended | Refused):
            server = self.servers[receiver]
            answers = server.on_closed(sender) if message == CLOSED else server.on_message(sender, message)
            self.network.send(receiver, answers)
            for gone in server.gone if isinstance(message, Fence) else ():
                self.network.drop(receiver, gone)

    def follow(self, output: Output) -> None:
        """Records first, then messages; and perhaps the coordinator dies between."""
        count = self.truncate(output)
        records, messages = output.records, output.messages
        self._count(output)
        self.disk += [from_plain(as_plain(record)) for record in records]
        self.network.send(COORDINATOR, messages if count is None else messages[:count])
        if count is not None:
            self.restart_coordinator()

    def _count(self, output: Output) -> None:
        self.counts.decisions += sum(isinstance(record, Decided) for record in output.records)
        self.counts.lost += sum(isinstance(record, Lost) for record in output.records)
        self.counts.left += sum(isinstance(record, Left) for record in output.records)

    def _tick(self) -> None:
        self.now_s += TICK_S
        for process in [*self.workers, *self.servers]:
            if self.alive(process) and self.network.reaches_coordinator(process):
                self.coordinator.heard(process, self.now_s)
                self.follow(self.coordinator.on_message(process, Waiting(self._waiting(process)), self.now_s))
        self.follow(self.coordinator.on_time(self.now_s))

    def _waiting(self, process: Process) -> Processes:
        return (self.servers[process] if process in self.servers else self.workers[process]).waiting()

    # Faults.

    def kill(self, process: Process, how: str, keep: Callable[[Process, Any], bool] | None = None) -> None:
        """`how`: exit (the launcher sees it), closed (its connections close) or silent (its host is gone)."""
        self.dead.add(process)
        self.network.unblock(process)
        self.network.cut(process, keep)
        self._forget_states(process)
        if how == "exit":
            self.network.send(LAUNCHER, [(COORDINATOR, Suspect(process))])
        if how != "silent":
            self._close(process)

    def _end_if_over(self, worker: Worker) -> None:
        if worker.over:
            if isinstance(worker, RingWorker):
                self.network.cut(worker.process, lambda receiver, message: not worker.takes_along(message))
            self._close(worker.process)

    def _close(self, process: Process) -> None:
        is_peer = process.role == "server" or not self.job.servers  # of a ring, workers are connected with each other
        others: Mapping[Process, Any] = self.workers if is_peer else self.servers
        self.network.send(process, [(other, CLOSED) for other in others if self.alive(other)])

    def restart_coordinator(self) -> None:
        """From its journal. Whoever lives connects anew."""
        self.counts.restarts += 1
        self.truncate = lambda output: None
        self.coordinator = self.job.coordinator_class(self.settings, self.disk)
        for process in [*self.workers, *self.servers]:
            self.reconnect(process)
        self.follow(self.coordinator.restart(self.now_s))

    def reconnect(self, process: Process) -> None:
        """The connection between a process and the coordinator breaks, and is made anew."""
        self.network.reconnect(process)
        if self.alive(process):
            table: Mapping[Process, Any] = self.workers if process.role == "worker" else self.servers
            self.network.send(process, table[process].join())

    # Checks.

    def _stepped(self, process: Process, state: Training) -> Training:
        number = len(state.rounds) - 1
        if process in self.coordinator.members.gone:
            return state  # its step is nobody's; it will be refused
        worker, members = self.workers[process], self.coordinator.members
        decided = any(isinstance(record, Decided) and record.generation == members.generation for record in self.disk)
        if decided and number >= members.first_round and worker.generation < members.generation:
            raise Violation(f"{process} steps round {number} in generation {worker.generation}, which is fenced")
        if wrong := state.wrong_samples():
            raise Violation(f"{process}, round {number}: {wrong}")
        self.counts.rounds += 1
        others = self._states.setdefault(number, {})
        for other, theirs in others.items():
            lost = other in members.gone and self.workers[other].over != "left"
            if theirs != state and not lost:
                raise Violation(f"round {number}: {process} has {state}, {other} has {theirs}")
        others[process] = state
        return state

    def _forget_states(self, process: Process) -> None:
        for states in self._states.values():
            states.pop(process, None)

    def run(self, disturb: Callable[[World], None]) -> Counts:
        """All rounds. `disturb` is called before each action.

        Raises:
            Violation, ProtocolError, WrongPush: an invariant does not hold, or somebody is stuck.
        """
        quiet = 0
        for _ in range(_MOST_ACTIONS):
            disturb(self)
            if not any(self.alive(process) for process in self.workers):
                break
            if self.act():
                quiet = 0
                continue
            quiet += 1
            if quiet % 10 == 9:
                self.network.release()
            if quiet > _QUIET_TICKS:
                break
            if quiet % 20 == 19:
                for process in self.network.blocked:
                    self.network.unblock(process)
            self._tick()
        self._check_end()
        return self.counts

    def _check_end(self) -> None:
        stuck = [w for w in self.training if not w.over]
        trained = [w for w in self.workers.values() if w.schedule]
        if len(self._states) < self.job.rounds and trained and all(w.over == "left" for w in trained):
            raise Violation(f"all have left after {len(self._states)} of {self.job.rounds} rounds")
        if stuck:
            rounds = {str(w.process): (w.round, w.generation, w.frozen, w.last, w.current.pushed) for w in stuck}
            raise Violation(f"stuck: {rounds}, change {self.coordinator.change}, gone {self.coordinator.members.gone}")
