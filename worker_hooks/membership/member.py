"""A worker's part in changes of membership, in threads beside training: I/O around dynamix_ps/membership/worker.py.

The training thread waits for none of them. While the others are asked where they are, its sum is not complete, and that
is all it sees of a change.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable

from dynamix_ps.comm.loss_watch import LossWatch
from dynamix_ps.comm.plane import PeerFailure, WorkerPlane
from dynamix_ps.errors import PeerLostError
from dynamix_ps.membership.effects import GoAway, Tell, suspicion
from dynamix_ps.membership.known_members import Planned
from dynamix_ps.membership.messages import Finish, FromCoordinator, LeaveAsked, Process, Resume
from dynamix_ps.membership.worker import Effects, Worker
from dynamix_ps.rpc.access import ArbitratorAccess
from dynamix_ps.rpc.member import Member
from worker_hooks.process.failure import end_beside_training

logger = logging.getLogger("dynamix")
_ANSWER_S = 0.5  # of a server to one question
_MEET_S = 60.0  # until a server that comes late must answer
_HEAR_S = 10.0  # until a newcomer must have heard of the generation that the others are in


class WorkerMember:
    """Keeps the sums of a worker in step with the members of the job.

    Args:
        process: this worker.
        plane: its sums.
        workers: that the job begins with.
        asked: called when somebody asks that this worker leaves.
        replaced: called, with the reason, when the others go on without this worker. It ends the process.
        late: it comes while the others train, and takes part from `begin` on.
        finish: called, with the reason, when too few are left, and the training is to end with a checkpoint.
    """

    def __init__(
        self,
        access: ArbitratorAccess,
        process: Process,
        plane: WorkerPlane,
        workers: int,
        asked: Callable[[], None] = lambda: None,
        replaced: Callable[[str], None] | None = None,
        late: bool = False,
        finish: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._plane, self._lease_s = plane, access.timeouts.lease_s
        self._asked, self._finish, self._replaced = asked, finish, replaced or _end
        self._mu = threading.Lock()  # of the worker, and so that the plane is told of everything in one order
        self._heard = threading.Condition(self._mu)  # told of every message
        self._worker = Worker(process, plane, workers, late)
        self._departing = False
        self._member = Member(access, process, self._act)
        self._watch = LossWatch(plane, self._lease_s, self._closed, self._look)

    def start(self) -> None:
        """This worker is a member from now on. Returns at once."""
        self._member.start()
        self._watch.start()

    @property
    def founded(self) -> bool:
        """Whether all members of the job have met, as far as this one knows."""
        return self._worker.generation > 0

    def wait_founded(self, timeout_s: float) -> bool:
        """Wait until all members of the job have met, for so long at most. Returns whether they have."""
        with self._mu:
            return self._heard.wait_for(lambda: self.founded, timeout_s)

    def others_left(self, slots: Collection[int]) -> None:
        """The round that is complete was the last one of these workers. Between two rounds, as `take_in`."""
        with self._mu:
            self._worker.others_left(slots)

    def suspect(self, process: Process) -> None:
        """It cannot be reached. Never blocks."""
        self._member.follow(suspicion(process))

    def offered(self) -> dict[int, Process]:
        """The processes that were offered so far, by version, up to a server that this worker has not met yet."""
        with self._mu:
            return self._worker.offered()

    def take_in(self, entering: Collection[Process]) -> Planned:
        """These workers and servers take part from the coming round on. Between two rounds, in the thread that trains.

        Raises PeerLostError if a server does not answer this worker, which came after the vote on it.
        """
        self._await(entering)
        with self._mu:
            return self._worker.take_in(entering)

    def begin(self, planned: Planned, round_number: int) -> None:
        """This worker has the state before a round, of a worker that has begun it.

        Raises PeerLostError if another decision is under way, or if a server does not answer this worker.
        """
        self._await(planned.servers)
        with self._mu:
            self._heard.wait_for(lambda: self._worker.has_heard_of(planned.generation), _HEAR_S)
            effects = self._worker.begin(planned, round_number)
        for effect in effects:
            if isinstance(effect, GoAway):
                raise PeerLostError(effect.reason)
        self._follow(effects)

    def _await(self, entering: Iterable[Process]) -> None:
        """Until each server answers, or is lost. Raises PeerLostError."""
        deadline_s = time.monotonic() + _MEET_S
        for server in entering:
            while not self._worker.known.has_met(server):
                if not self._meet(server) and time.monotonic() > deadline_s:
                    raise PeerLostError(
                        f"{server} has not answered this worker in {_MEET_S:g} s; it must be started again"
                    )

    def close(self) -> None:
        """This worker's last round is complete: leave the others when they have it, too. Waits some seconds at most."""
        if self._departing:
            return
        self._departing = True
        with self._mu:
            self._worker.depart()
        # Still a member, whom they hear. Who has not entered has had no round.
        departed = self._worker.known.is_late or self._plane.depart(lambda: self._worker.need_not_stay)
        with self._mu:
            last = self._worker.last_word(departed)
        self._member.close(last)
        self._watch.close()

    def _closed(self, loss: PeerFailure) -> None:
        with self._mu:
            effects = self._worker.on_closed(loss.kind, loss.rank)
        self._follow(effects)

    def _look(self) -> None:
        with self._mu:
            new = self._worker.not_met()
        for server in new:
            self._meet(server)
        workers, servers = self._plane.silent(self._lease_s), self._plane.silent_servers(self._lease_s)
        with self._mu:
            effects = self._worker.on_time(time.monotonic())
            waited_for = self._worker.waits_for(workers, servers)
        self._follow(effects)
        self._member.waits(waited_for)

    def _meet(self, server: Process) -> bool:
        """Whether a server answers now."""
        if answers := self._plane.answers(server.slot, _ANSWER_S):
            self._watch.tell()
            with self._mu:
                self._worker.met(server)
        return answers

    def _act(self, message: FromCoordinator) -> None:
        with self._mu:
            effects = self._worker.on_message(message, time.monotonic())
            count = len(self._worker.known.present())
            self._heard.notify_all()
        if isinstance(message, Resume):
            logger.info("generation %d: %d workers from round %d", message.generation, count, message.first_round)
        self._follow(effects)

    def _follow(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case Tell():
                    self._member.follow(effect)
                case GoAway(reason):
                    self._replaced(reason)
                case Finish(reason):
                    self._finish(reason)
                case LeaveAsked():
                    self._asked()


def _end(reason: str) -> None:
    """The others count this worker as lost: what it would go on with is of no use."""
    end_beside_training(PeerLostError(f"this worker cannot go on: {reason}"))
