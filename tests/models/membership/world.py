"""A job on a fake network: any order of what can happen next, and faults between. `checks.py` looks on."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dynamix_ps.comm.catching_up import CatchingUp
from dynamix_ps.membership.coordinator import Coordinator
from dynamix_ps.membership.effects import Tell, suspicion
from dynamix_ps.membership.generations import MembershipSettings, Output
from dynamix_ps.membership.journal import Decided, Left, Lost, Record, as_plain, from_plain
from dynamix_ps.membership.messages import COORDINATOR, AskLeave, Join, Leave, Process, Waiting
from dynamix_ps.membership.ring_worker import Ring
from dynamix_ps.membership.worker import Worker
from tests.models.membership.checks import Checks
from tests.models.membership.job import WAIT_S, Counts, Job, References
from tests.models.membership.network import Network
from tests.models.membership.planes import Kept, Named, Piece, RingPlane, ServerPlane
from tests.models.membership.processes import Closed, ServerProcess, Stream, WorkerProcess
from tests.models.membership.trainer import Handover, Phase, Told, Trainer
from tests.models.membership.training import first_plans
from worker_hooks.membership.votes import MembershipVotes

LAUNCHER = Process("launcher", 0, "")
TICK_S = 0.2
LEASE_S = 2.0
_MOST_ACTIONS = 50_000
_TRIES, _OF_TRAINING = 3, 0.4  # of choosing what happens next, and how often it is a step of a worker
_SEEN_TICKS = 6  # longer than a closed connection is not believed, and shorter than a lease
_LAST_ANSWERS_S = 0.8  # what a dead process has sent arrives within it
_QUIET_TICKS = 120  # longer than any lease: then nothing will happen any more


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
        self.running: list[WorkerProcess] = []
        self.reasons: dict[Process, str] = {}  # why processes have ended
        self.truncate: Callable[[Output], int | None] = lambda output: None  # it dies after so many messages
        self._in_slot: dict[tuple[str, int], Process] = {}  # that was started last
        self._ended: list[Process] = []  # of which the launcher tells, when their last word has arrived
        self.died_at_end = False  # while others were leaving: one that has named its round may wait for these
        self.unseen: dict[Process, bool] = {}  # dead ones, of which the launcher tells late; True: others see it
        self.in_order: set[Process] = set()  # workers that have left, and have told the coordinator
        self._open: set[Process] = set()  # those of them whose connections are not closed yet
        self._hidden_since_s = 0.0  # since when nobody reaches the coordinator
        self._back_s: dict[Process, float] = {}  # when who was hidden from it reaches it again
        self._died_s: dict[Process, float] = {}
        self._started = 0
        self.launcher = Stream(lambda to, message: self.network.send(LAUNCHER, [(to, message)]))
        self.asked: list[Process] = []  # to leave, by the launcher
        self.out_of_reach: set[tuple[Process, Process]] = set()  # servers that come, and workers that they never answer
        self.unreachable: set[Process] = set()  # newcomers to which nobody can bring the state
        self.checks = Checks(self)
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
        plans, are_followed = first_plans(job.workers, job.slots, job.prefetch), job.follows and bool(job.servers)
        votes: MembershipVotes[CatchingUp] = MembershipVotes(core, plans, job.least, are_followed)
        trainer = Trainer(core, plane, votes, len(job.pieces), self.checks.closes, self._listens)
        trainer.is_founder = founder
        send = lambda to, what: self._send(process, to, what)  # noqa: E731
        self._comes(process)
        self.workers[process] = WorkerProcess(
            core, trainer, plane, send, lambda slot: self._in_slot.get(("server", slot))
        )
        self.running.append(self.workers[process])
        self.workers[process].stream.connect(Join())

    def start_server(self, process: Process) -> None:
        """It joins."""
        send = lambda to, what: self._send(process, to, what)  # noqa: E731
        self._comes(process)
        table = self._references.table()
        self.servers[process] = ServerProcess(process, table, send, lambda slot: self._in_slot.get(("worker", slot)))
        self.servers[process].stream.connect(Join())

    def _comes(self, process: Process) -> None:
        """What the one before it in its slot has said is heard before."""
        if (earlier := self._in_slot.get((process.role, process.slot))) is not None:
            self._tell_closed(COORDINATOR, [earlier])
            self._close_now(earlier)
        self._in_slot[process.role, process.slot] = process

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
        gone = receiver.role in ("worker", "server") and not self.alive(receiver)
        if isinstance(message, Handover | Told) and (gone or receiver in self.unreachable):
            self.network.send(receiver, [(sender, Closed())])
        elif not gone:
            self.network.send(sender, [(receiver, message)])

    def _listens(self, newcomer: Process) -> bool:
        """Whether the state of the training can get to this newcomer, which follows nobody yet."""
        trainer = self.workers[newcomer].trainer
        return self.alive(newcomer) and newcomer not in self.unreachable and trainer.giver is None and not trainer.inbox

    def _send_to(self, sender: Process, address: str, message: Any) -> None:
        """To the process with this address."""
        receiver = next((process for process in self.workers if process.address == address), None)
        if receiver is not None and self.alive(receiver):
            self.network.send(sender, [(receiver, message)])

    # What may happen next.

    def act(self) -> bool:
        """Do one of the things that can happen. Returns False if nothing is left but time."""
        if self.rng.random() < 0.02:
            self._tick()
        for _ in range(_TRIES):
            if self.rng.random() < _OF_TRAINING and self.running:
                if self._act(self.rng.choice(self.running)):
                    return True
            elif channels := self.network.deliverable():
                sender, receiver = channel = self.rng.choice(channels)
                self._deliver(sender, receiver, self.network.take(channel))
                return True
        if channels := self.network.deliverable():
            sender, receiver = channel = self.rng.choice(channels)
            self._deliver(sender, receiver, self.network.take(channel))
            return True
        return any(self._act(worker) for worker in self.rng.sample(self.running, len(self.running)))

    def _act(self, worker: WorkerProcess) -> bool:
        """A step of this worker, if there is one: of its training, or it meets a server."""
        process, trainer = worker.core.known.own, worker.trainer
        if servers := [one for one in worker.servers_to_meet() if self._answers(one, process)]:
            server = self.rng.choice(servers)
            self._tell_closed(process, [one for one in self.servers if one.slot == server.slot and one != server])
            worker.meet(server)
            return True
        if not (self._is_summed(worker) if trainer.phase is Phase.WAIT else trainer.can_act):
            return False
        was, entered_at = trainer.phase, trainer.entered_at
        worker.act()
        if was is Phase.WAIT and trainer.phase is Phase.SUMMED:
            self.checks.complete(worker)
        elif was is Phase.SUMMED and trainer.phase is Phase.LEARNT:
            self.counts.followed += trainer.votes.follows
            if not trainer.votes.follows:
                self.checks.step(worker)
        self.counts.entered += trainer.entered_at != entered_at
        self._end_if_over(process)
        return True

    def _answers(self, server: Process, worker: Process) -> bool:
        there = self.alive(server) and self._in_slot["server", server.slot] == server
        return (
            there
            and (server, worker) not in self.out_of_reach
            and not self.network.is_cut_off(server)
            and not self.network.is_cut_off(worker)
        )

    def _is_summed(self, worker: WorkerProcess) -> bool:
        """A wait would complete the round: other waits change nothing."""
        plane = worker.plane
        if isinstance(plane, RingPlane):
            return not plane.core.is_held and plane.core.next_part() is None
        return not plane.exchange.status().missing and not plane.exchange._frozen

    def _deliver(self, sender: Process, receiver: Process, message: Any) -> None:
        if receiver == COORDINATOR:
            self._back_s.pop(sender, None)
            return self.follow(self.coordinator.on_message(sender, message, self.now_s))
        if not self.alive(receiver):
            return None
        if receiver.role == "server":
            server = self.servers[receiver]
            if sender == COORDINATOR:
                self._tell_closed(receiver, self.workers)
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

    def _tell_closed(self, receiver: Process, others: Iterable[Process]) -> None:
        """Connections to others that have ended are seen before those to who has come since."""
        for sender in [one for one in others if not self.alive(one)]:
            while self.network.is_sending(sender, receiver):
                self._deliver(sender, receiver, self.network.take((sender, receiver)))

    def follow(self, output: Output) -> None:
        """Records first, then messages; and perhaps the coordinator dies between."""
        count = self.truncate(output)
        records, messages = output.records, output.messages
        if count is not None and count < 0:  # it dies while it writes
            records, count = records[: count + len(records)], 0
        self._count(records)
        for record in records:
            self.checks.record(record)
        self.disk += [from_plain(as_plain(record)) for record in records]
        for receiver, message in messages if count is None else messages[:count]:
            self._send(COORDINATOR, receiver, message)
        if count is not None:
            self.restart_coordinator()

    def _count(self, records: list[Record]) -> None:
        self.counts.decisions += sum(isinstance(record, Decided) for record in records)
        self.counts.lost += sum(isinstance(record, Lost) for record in records)
        self.counts.left += sum(isinstance(record, Left) for record in records)

    def _tick(self) -> None:
        self.now_s += TICK_S
        for process in [*self.workers, *self.servers]:
            if not self.alive(process):
                continue
            if process in self.workers:
                died = [one for one, died_s in self._died_s.items() if self.now_s - died_s >= _LAST_ANSWERS_S]
                self._tell_closed(process, [one for one in died if self.network.arriving(one, process)])
                self.workers[process].look(self.now_s, TICK_S)
                self._end_if_over(process)
            reaches = self.network.reaches_coordinator(process) and self.now_s >= self._back_s.get(process, 0.0)
            if self.alive(process) and reaches:
                self._back_s.pop(process, None)
                self.coordinator.heard(process, self.now_s)
                waiting = Waiting(self._waits_in_vain(process))
                self.follow(self.coordinator.on_message(process, waiting, self.now_s))
        for process in [one for one in self._ended if not self.network.is_sending(one, COORDINATOR)]:
            self._ended.remove(process)
            self._close_now(process)
            self.launcher.tell(suspicion(process))
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
        """`how`: exit (the launcher sees it), closed (others do) or silent (its host is gone)."""
        self.dead.add(process)
        self.died_at_end |= any(worker.trainer.phase is Phase.DEPART for worker in self.running)
        self.running = [worker for worker in self.running if worker.core.known.own != process]
        self.network.unblock(process)
        self.network.cut(process, keep)
        self._end_of_rings(process, all_is_lost=False)
        self.checks.forget(process)
        self._died_s[process] = self.now_s
        if how == "exit":
            self.launcher.tell(suspicion(process))
        else:
            self.unseen[process] = how == "closed" and process.incarnation == "first"
        if how != "silent":
            self._close(process)

    def _end_if_over(self, process: Process) -> None:
        table: Mapping[Process, Any] = self.workers if process.role == "worker" else self.servers
        if not table[process].over or process in self.reasons:
            return
        self.reasons[process] = table[process].over
        self.running = [worker for worker in self.running if worker.core.known.own != process]
        self.checks.reason(process)
        self.counts.cut_off += "which is lost" in table[process].over
        self._end_of_rings(process, all_is_lost=True)
        self._ended.append(process)
        leaves = process in self.workers and isinstance(self.workers[process].trainer.last_word, Leave)
        if leaves and not self.network.is_blocked(process):
            self.in_order.add(process)
            self._open.add(process)
        else:
            self._close(process)

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

    def _close_now(self, process: Process) -> None:
        """It has waited with it until the coordinator knew."""
        if process in self._open:
            self._open.remove(process)
            self._close(process)

    def _close(self, process: Process) -> None:
        for other in [*self.workers, *self.servers]:
            if other != process and self.alive(other):
                self.network.send(process, [(other, Closed())])

    def restart_coordinator(self) -> None:
        """From its journal. Whoever lives connects anew."""
        self.counts.restarts += 1
        self.truncate = lambda output: None
        self.coordinator = Coordinator(self.settings, self.disk)
        self._back_s.clear()
        self._hidden_since_s = self.now_s
        for process in [*self.workers, *self.servers]:
            self.reconnect(process)
        self.reconnect(LAUNCHER)
        self.follow(self.coordinator.restart(self.now_s))

    def reconnect(self, process: Process) -> None:
        """The connection between a process and the coordinator breaks, and is made anew."""
        self.network.reconnect(process)
        self.in_order.discard(process)
        if process == LAUNCHER:
            self.launcher.connect()
        elif self.alive(process):
            (self.workers if process in self.workers else self.servers)[process].stream.connect(Join())

    def ask_to_leave(self, process: Process) -> None:
        """The launcher is told that a worker is to leave."""
        self.asked.append(process)
        self.launcher.tell(Tell(AskLeave(process, len(self.asked)), keep=True))

    def hide_coordinator(self) -> None:
        """Nobody reaches it until `show_coordinator`."""
        self.network.hides_coordinator, self._hidden_since_s = True, self.now_s

    def show_coordinator(self) -> None:
        """Each process tries again after up to as long as it was hidden."""
        if self.network.hides_coordinator:
            self.network.hides_coordinator = False
            for process in [*self.workers, *self.servers]:
                self._back_s[process] = self.now_s + self.rng.uniform(0.0, self.now_s - self._hidden_since_s)

    def heal(self) -> None:
        """Nothing is cut off any more, and the launcher knows who is dead."""
        self.show_coordinator()
        self.network.heal()
        self._ended += sorted(self.unseen)
        self.unseen.clear()

    def run(self, disturb: Callable[[World], None]) -> Counts:
        """All rounds. `disturb` is called before each action.

        Raises:
            Violation, ProtocolError: an invariant does not hold, or somebody is stuck.
        """
        quiet = 0
        for _ in range(_MOST_ACTIONS):
            disturb(self)
            if not self.running:
                break
            if self.act():
                quiet = 0
                continue
            quiet += 1
            if quiet % 10 == 9:
                self.network.release()
            if quiet > _QUIET_TICKS:
                break
            if quiet == _SEEN_TICKS and self.network.is_whole:
                self.checks.found_out([process for process, is_seen in self.unseen.items() if is_seen], only_seen=True)
            if quiet == _QUIET_TICKS // 2:  # the launcher has lost the hosts of all
                self.checks.found_out([] if self._back_s else list(self.unseen))
                self.heal()
            if quiet % 20 == 19:
                self.show_coordinator()
                for process in self.network.blocked:
                    self.network.unblock(process)
            self._tick()
        self.checks.end()
        return self.counts
