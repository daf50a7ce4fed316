"""A job on a fake network: any order of what can happen next, and faults between.

After each round of each worker the invariants are checked:

    contributors of a round, and so the state after it, are the same on all who are members or have left
    nobody completes a round of a generation that is fenced
    each sample is taken once per epoch

and at the end, that nothing is stuck, and that not all have left before the last round.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dynamix_ps.membership.coordinator import Coordinator
from dynamix_ps.membership.generations import MembershipSettings, Output
from dynamix_ps.membership.journal import Decided, Left, Lost, Record, as_plain, from_plain
from dynamix_ps.membership.messages import COORDINATOR, Process, Suspect, Waiting
from dynamix_ps.membership.ring_worker import Ring
from dynamix_ps.membership.worker import Worker
from tests.models.membership.exchange import Exchange
from tests.models.membership.network import Network
from tests.models.membership.planes import Kept, Named, Piece, RingPlane, ServerPlane
from tests.models.membership.processes import Closed, ServerProcess, WorkerProcess
from tests.models.membership.round_table import RoundTable
from tests.models.membership.trainer import Phase, Trainer, Violation
from tests.models.membership.training import TrainingVotes

LAUNCHER = Process("launcher", 0, "")
TICK_S = 0.2
LEASE_S, WAIT_S = 2.0, 4.0
_MOST_ACTIONS = 50_000
_TRIES, _OF_TRAINING = 3, 0.4  # of choosing what happens next, and how often it is a step of a worker
_QUIET_TICKS = 120  # longer than any lease: then nothing will happen any more


@dataclass(frozen=True, slots=True)
class Job:
    """What is started.

    Attributes:
        servers: 0: a ring.
        pieces: of every buffer, over servers.
        follows: newcomers follow before they enter; not in a ring.
        spare: slots of workers that are empty at first.
        least: workers; with fewer, the others wait WAIT_S for newcomers.
    """

    workers: int = 4
    servers: int = 2
    pieces: tuple[int, ...] = (2, 1)
    rounds: int = 6
    prefetch: int = 0
    follows: bool = True
    spare: int = 2
    least: int = 1

    @property
    def slots(self) -> int:
        return self.workers + self.spare


@dataclass
class Counts:
    """What happened, so that a tally can tell that it was tried."""

    rounds: int = 0  # of all workers
    decisions: int = 0
    behind: int = 0  # workers that were one round behind at a decision
    entered: int = 0
    followed: int = 0  # rounds of newcomers before they entered
    left: int = 0
    lost: int = 0
    cut_off: int = 0  # workers that end because a sum was lost with a server
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class References:
    """What makes the sums over servers: the references, or recorded ones."""

    exchange: Callable[..., Exchange] = Exchange
    table: Callable[..., RoundTable] = RoundTable


class World:
    """One run. `act` does one thing; `run` does all."""

    def __init__(self, job: Job, seed: int, references: References = References()) -> None:
        self.job, self.rng, self._references = job, random.Random(seed), references
        self.network = Network(self.rng)
        self.now_s = 0.0
        self.counts = Counts()
        self.disk: list[Record] = []
        self.workers: dict[Process, WorkerProcess] = {}
        self.servers: dict[Process, ServerProcess] = {}
        self.dead: set[Process] = set()
        self._running: list[WorkerProcess] = []
        self.reasons: dict[Process, str] = {}  # why processes have ended
        self.truncate: Callable[[Output], int | None] = lambda output: None  # messages after which the coordinator dies
        self._states: dict[int, dict[Process, Any]] = {}  # after each round
        self._in_slot: dict[tuple[str, int], Process] = {}  # that was started last
        self._ended: list[Process] = []  # of which the launcher tells, when their last word has arrived
        self._unseen: set[Process] = set()  # dead ones, of which the launcher tells late
        self._started = 0
        self.settings = MembershipSettings(
            job.workers, job.servers, job.least, max_workers=job.slots, lease_s=LEASE_S, join_wait_s=WAIT_S
        )
        self.coordinator = Coordinator(self.settings)
        for slot in range(job.servers):
            self.start_server(Process("server", slot, "first"))
        for slot in range(job.workers):
            self.start_worker(Process("worker", slot, "first", address=f"worker {slot} first"))

    # Processes.

    def start_worker(self, process: Process) -> None:
        """A founder, or a newcomer."""
        job, founder = self.job, process.incarnation == "first"
        plane: ServerPlane | RingPlane
        if job.servers:
            exchange = self._references.exchange(process.slot, job.pieces, job.workers, job.servers)
            plane, sums = ServerPlane(exchange), exchange
        else:
            ring = Ring(0, 0, tuple((slot, "") for slot in range(job.workers)))
            plane = RingPlane(process, ring if founder else None, lambda to, what: self._send_to(process, to, what))
            sums = plane  # type: ignore[assignment]
        core = Worker(process, sums, job.workers, late=not founder)
        state = TrainingVotes.of(job.workers, job.slots, job.prefetch)
        trainer = Trainer(core, plane, state, len(job.pieces), job.rounds, job.follows and bool(job.servers))
        trainer.is_founder = founder
        send = lambda to, what: self._send(process, to, what)  # noqa: E731
        self._in_slot["worker", process.slot] = process
        self.workers[process] = WorkerProcess(
            core, trainer, plane, send, lambda slot: self._in_slot.get(("server", slot))
        )
        self._running.append(self.workers[process])
        self.workers[process].stream.connect()

    def start_server(self, process: Process) -> None:
        """It joins."""
        send = lambda to, what: self._send(process, to, what)  # noqa: E731
        self._in_slot["server", process.slot] = process
        table = self._references.table()
        self.servers[process] = ServerProcess(process, table, send, lambda slot: self._in_slot.get(("worker", slot)))
        self.servers[process].stream.connect()

    def newcomer(self, role: str) -> Process | None:
        """A name for one that comes: in a slot that is free, or whose process is dead. None: there is none."""
        self._started += 1
        table: Mapping[Process, Any] = self.workers if role == "worker" else self.servers
        taken = {process.slot for process in table if self.alive(process)}
        free = sorted(set(range(self.job.slots if role == "worker" else self.job.servers)) - taken)
        if not free:
            return None
        slot, name = self.rng.choice(free), f"came {self._started}"
        if role == "worker":
            return Process("worker", slot, name, address=f"worker {slot} {name}", state_address=name)
        return Process("server", slot, name)

    def alive(self, process: Process) -> bool:
        """Runs."""
        table: Mapping[Process, Any] = self.workers if process.role == "worker" else self.servers
        return process not in self.dead and process in table and not table[process].over

    @property
    def training(self) -> list[WorkerProcess]:
        """Workers that run, are in rounds, and are not given up by the coordinator."""
        gone = self.coordinator.members.gone
        return [w for p, w in self.workers.items() if self.alive(p) and w.trainer.has_state and p not in gone]

    def _send(self, sender: Process, receiver: Process, message: Any) -> None:
        if receiver.role in ("worker", "server") and not self.alive(receiver):
            if receiver.state_address and sender in self.workers and not isinstance(message, Closed):
                self.network.send(receiver, [(sender, Closed())])  # it cannot be reached
            return
        self.network.send(sender, [(receiver, message)])

    def _send_to(self, sender: Process, address: str, message: Any) -> None:
        """To the process with this address, or one of those that the job begins with."""
        name = address if address.startswith("worker") else f"worker {address.split()[1]} first"
        receiver = next((process for process in self.workers if process.address == name), None)
        if receiver is not None and self.alive(receiver):
            self.network.send(sender, [(receiver, message)])

    # What may happen next.

    def act(self) -> bool:
        """Do one of the things that can happen. Returns False if nothing is left but time."""
        if self.rng.random() < 0.02:
            self._tick()
        for _ in range(_TRIES):
            if self.rng.random() < _OF_TRAINING:
                if self._act(self.rng.choice(self._running)):
                    return True
            elif channels := self.network.deliverable():
                sender, receiver = channel = self.rng.choice(channels)
                self._deliver(sender, receiver, self.network.take(channel))
                return True
        if channels := self.network.deliverable():
            sender, receiver = channel = self.rng.choice(channels)
            self._deliver(sender, receiver, self.network.take(channel))
            return True
        return any(self._act(worker) for worker in self.rng.sample(self._running, len(self._running)))

    def _act(self, worker: WorkerProcess) -> bool:
        """A step of this worker, if there is one: of its training, or it meets a server."""
        process, trainer = worker.core.known.own, worker.trainer
        if servers := [one for one in worker.servers_to_meet() if self._answers(one, process)]:
            worker.meet(self.rng.choice(servers))
            return True
        if not (self._is_summed(worker) if trainer.phase is Phase.WAIT else trainer.can_act):
            return False
        was, entered_at = trainer.phase, trainer.entered_at
        worker.act()
        if was is Phase.WAIT and trainer.phase is Phase.SUMMED:
            self._check_fence(worker)
        elif was is Phase.SUMMED and trainer.phase is Phase.LEARNT:
            self.counts.followed += trainer.follows
            if not trainer.follows:
                self._check_step(worker)
        self.counts.entered += trainer.entered_at != entered_at
        self._end_if_over(process)
        return True

    def _answers(self, server: Process, worker: Process) -> bool:
        there = self.alive(server) and self._in_slot["server", server.slot] == server
        return there and not self.network.is_cut_off(server) and not self.network.is_cut_off(worker)

    def _is_summed(self, worker: WorkerProcess) -> bool:
        """A wait would complete the round: other waits change nothing."""
        plane = worker.plane
        if isinstance(plane, RingPlane):
            return not plane.core.is_held and plane.core.next_part() is None
        return not plane.exchange.status().missing and not plane.exchange._frozen

    def _deliver(self, sender: Process, receiver: Process, message: Any) -> None:
        if receiver == COORDINATOR:
            return self.follow(self.coordinator.on_message(sender, message, self.now_s))
        if not self.alive(receiver):
            return None
        if receiver.role == "server":
            server = self.servers[receiver]
            server.on_coordinator(message) if sender == COORDINATOR else server.on_peer(sender, message)
        else:
            worker = self.workers[receiver]
            if sender == COORDINATOR:
                generation, number = worker.core.generation, worker.trainer.round
                worker.on_coordinator(message, self.now_s)
                if worker.core.generation > generation and worker.trainer.has_state:
                    self.counts.behind += number < getattr(message, "first_round", 0)
            else:
                worker.on_peer(sender, message)
        self._end_if_over(receiver)
        return None

    def follow(self, output: Output) -> None:
        """Records first, then messages; and perhaps the coordinator dies between."""
        count = self.truncate(output)
        records, messages = output.records, output.messages
        self._count(output)
        self.disk += [from_plain(as_plain(record)) for record in records]
        for receiver, message in messages if count is None else messages[:count]:
            self._send(COORDINATOR, receiver, message)
        if count is not None:
            self.restart_coordinator()

    def _count(self, output: Output) -> None:
        self.counts.decisions += sum(isinstance(record, Decided) for record in output.records)
        self.counts.lost += sum(isinstance(record, Lost) for record in output.records)
        self.counts.left += sum(isinstance(record, Left) for record in output.records)

    def _tick(self) -> None:
        self.now_s += TICK_S
        for process in [*self.workers, *self.servers]:
            if not self.alive(process):
                continue
            if process in self.workers:
                self.workers[process].look(self.now_s, TICK_S)
                self._end_if_over(process)
            if self.alive(process) and self.network.reaches_coordinator(process):
                self.coordinator.heard(process, self.now_s)
                waiting = Waiting(self._waits_in_vain(process))
                self.follow(self.coordinator.on_message(process, waiting, self.now_s))
        for process in [one for one in self._ended if not self.network.is_sending(one, COORDINATOR)]:
            self._ended.remove(process)
            self.network.send(LAUNCHER, [(COORDINATOR, Suspect(process))])
        self.follow(self.coordinator.on_time(self.now_s))

    def _waits_in_vain(self, process: Process) -> Any:
        """For whom, as the data planes see it: whose transport does not answer."""
        cut_off = self.network.is_cut_off

        def silent(one: Process | None) -> bool:
            return one is None or one in self.dead or cut_off(one) or cut_off(process)

        if process in self.servers:
            table, slots = self.servers[process].table, range(self.job.slots)
            missing = [slot for slot in table.missing(slots) if silent(self._in_slot.get(("worker", slot)))]
            return self.servers[process].core.waits_for(missing)
        worker = self.workers[process]
        if isinstance(worker.plane, RingPlane):
            others = worker.plane.core.others() if worker.plane.core.waits else {}
            by_address = {one.address: one for one in self.workers}
            ranks = [rank for rank, address in others.items() if silent(by_address.get(address))]
            return worker.core.waits_for(ranks, ())
        servers = worker.plane.exchange.unanswered()
        return worker.core.waits_for((), [slot for slot in servers if silent(self._in_slot.get(("server", slot)))])

    # Faults.

    def kill(self, process: Process, how: str, keep: Callable[[Process, Any], bool] | None = None) -> None:
        """`how`: exit (the launcher sees it), closed (the launcher sees it later) or silent (its host is gone)."""
        self.dead.add(process)
        self._running = [worker for worker in self._running if worker.core.known.own != process]
        self.network.unblock(process)
        self.network.cut(process, keep)
        self._end_of_rings(process, all_is_lost=False)
        for states in self._states.values():
            states.pop(process, None)
        if how == "exit":
            self.network.send(LAUNCHER, [(COORDINATOR, Suspect(process))])
        elif how == "closed":
            self._ended.append(process)
        if how == "silent":
            self._unseen.add(process)
        else:
            self._close(process)

    def _end_if_over(self, process: Process) -> None:
        table: Mapping[Process, Any] = self.workers if process.role == "worker" else self.servers
        if not table[process].over or process in self.reasons:
            return
        self.reasons[process] = table[process].over
        self._running = [worker for worker in self._running if worker.core.known.own != process]
        self.counts.cut_off += "which is lost" in table[process].over
        self._end_of_rings(process, all_is_lost=True)
        self._close(process)
        self._ended.append(process)

    def _end_of_rings(self, process: Process, all_is_lost: bool) -> None:
        """What is on its way through a ring that this process was in is lost, at an orderly end all of it."""
        plane = self.workers[process].plane if process in self.workers else None
        if not isinstance(plane, RingPlane):
            return
        self.network.lose(
            lambda message: (
                isinstance(message, Named | Piece | Kept)
                and plane.passes_on(message.ring)
                and (all_is_lost or self.rng.random() < 0.5)
            )
        )

    def _close(self, process: Process) -> None:
        for other in [*self.workers, *self.servers]:
            if other != process and self.alive(other):
                self.network.send(process, [(other, Closed())])

    def restart_coordinator(self) -> None:
        """From its journal. Whoever lives connects anew."""
        self.counts.restarts += 1
        self.truncate = lambda output: None
        self.coordinator = Coordinator(self.settings, self.disk)
        for process in [*self.workers, *self.servers]:
            self.reconnect(process)
        self.follow(self.coordinator.restart(self.now_s))

    def reconnect(self, process: Process) -> None:
        """The connection between a process and the coordinator breaks, and is made anew."""
        self.network.reconnect(process)
        if self.alive(process):
            (self.workers if process in self.workers else self.servers)[process].stream.connect()

    # Checks.

    def _check_fence(self, worker: WorkerProcess) -> None:
        process, members = worker.core.known.own, self.coordinator.members
        if process in members.gone:
            return  # its step is nobody's; it will be refused
        decided = any(isinstance(record, Decided) and record.generation == members.generation for record in self.disk)
        number = worker.trainer.round
        if decided and number >= members.first_round and worker.core.generation < members.generation:
            raise Violation(f"{process} completes round {number} in generation {worker.core.generation}: it is fenced")

    def _check_step(self, worker: WorkerProcess) -> None:
        process, members, state = worker.core.known.own, self.coordinator.members, worker.trainer.training
        if process in members.gone:
            return
        number = state.iteration - 1
        if wrong := state.wrong_samples():
            raise Violation(f"{process}, round {number}: {wrong}")
        self.counts.rounds += 1
        others = self._states.setdefault(number, {})
        for other, theirs in others.items():
            lost = other in members.gone and self.workers[other].over != "left"
            if theirs != state and not lost:
                raise Violation(f"round {number}: {process} has {state}, {other} has {theirs}")
        others[process] = state

    def run(self, disturb: Callable[[World], None]) -> Counts:
        """All rounds. `disturb` is called before each action.

        Raises:
            Violation, ProtocolError: an invariant does not hold, or somebody is stuck.
        """
        quiet = 0
        for _ in range(_MOST_ACTIONS):
            disturb(self)
            if not self._running:
                break
            if self.act():
                quiet = 0
                continue
            quiet += 1
            if quiet % 10 == 9:
                self.network.release()
            if quiet > _QUIET_TICKS:
                break
            if quiet == _QUIET_TICKS // 2:  # the launcher has lost the hosts of those that were silent
                self._ended += sorted(self._unseen)
                self._unseen.clear()
            if quiet % 20 == 19:
                for process in self.network.blocked:
                    self.network.unblock(process)
            self._tick()
        self._check_end()
        return self.counts

    def _check_end(self) -> None:
        if self._running:
            stuck = [(w.trainer, w.core.generation) for w in self._running]
            where = {str(trainer.own): (trainer.phase.name, trainer.round, number) for trainer, number in stuck}
            raise Violation(f"stuck: {where}, the coordinator has {self.coordinator.change} {self.coordinator.members}")
        ends = [w.over for w in self.workers.values() if w.trainer.has_state or w.trainer.training.rounds]
        if not any(w.over == "left" and w.trainer.round >= w.trainer.rounds for w in self.workers.values()):
            raise Violation(f"nobody has made all {self.job.rounds} rounds: {ends}, {self.reasons}")
