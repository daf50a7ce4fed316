"""A worker's part in changes of membership, in threads beside training: I/O around dynamix_ps/membership/worker.py.

The training thread waits for none of them. While the others are asked where they are, its sum is not complete, and that
is all it sees of a change.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable

from dynamix_ps.comm.peer_watch import PeerWatch
from dynamix_ps.comm.plane import PeerFailure, WorkerPlane
from dynamix_ps.errors import PeerLostError
from dynamix_ps.membership.effects import GoAway, Tell, suspicion
from dynamix_ps.membership.known_members import Planned
from dynamix_ps.membership.messages import FromCoordinator, Process
from dynamix_ps.membership.worker import Effects, ForTraining, Worker
from dynamix_ps.rpc.access import ArbitratorAccess
from dynamix_ps.rpc.member import Member

_ANSWER_S = 0.5  # of a server to one question
_MEET_S = 60.0  # until a server that comes while the job trains must answer
_HEAR_S = 10.0  # until a newcomer must have heard of the generation that the others are in


class WorkerMember:
    """Keeps the sums of a worker in step with the members of the job.

    Args:
        process: this worker.
        plane: its sums.
        workers: that the job begins with.
        follow: called, in other threads, with what training is to do.
        late: it comes while the others train, and takes part from `begin` on.
    """

    def __init__(
        self,
        access: ArbitratorAccess,
        process: Process,
        plane: WorkerPlane,
        workers: int,
        follow: Callable[[ForTraining], None],
        late: bool = False,
    ) -> None:
        self._plane, self._lease_s, self._tell_training = plane, access.timeouts.lease_s, follow
        self._mu = threading.Lock()  # of the worker, and so that the plane is told of everything in one order
        self._happened = threading.Condition(self._mu)  # told of every event, and several times per second
        self._worker = Worker(process, plane, workers, late)
        self._departing = False
        self._member = Member(access, process, self._act)
        self._watch = PeerWatch(plane, self._lease_s, self._closed, self._look)

    def start(self) -> None:
        """This worker is a member from now on. Returns at once."""
        self._member.start()
        self._watch.start()

    @property
    def founded(self) -> bool:
        """Whether all members of the job have met, as far as this one knows."""
        return self._worker.generation > 0

    def wait_founded(self, timeout_s: float, over: Callable[[], bool]) -> bool:
        """Wait until all members of the job have met, or until `over`. Returns whether that was within `timeout_s`."""
        with self._mu:
            return self._happened.wait_for(lambda: self.founded or over(), timeout_s)

    def others_left(self, slots: Collection[int]) -> None:
        """The round that is complete was the last one of these workers. Between two rounds, as `take_in`."""
        with self._mu:
            self._worker.others_left(slots)

    def suspect(self, process: Process) -> None:
        """It cannot be reached. Never blocks."""
        self._member.follow(suspicion(process))

    def offered(self) -> dict[int, Process]:
        """As `Worker.offered`."""
        with self._mu:
            return self._worker.offered()

    def planned(self) -> Planned:
        """As `Worker.planned`."""
        with self._mu:
            return self._worker.planned()

    def take_in(self, entering: Collection[Process]) -> Planned:
        """As `Worker.take_in`. Raises PeerLostError if a server does not answer this worker."""
        self.meet(entering)
        with self._mu:
            return self._worker.take_in(entering)

    def begin(self, planned: Planned, round_number: int) -> None:
        """As `Worker.begin`. Raises PeerLostError if another decision is under way, or a server does not answer."""
        self.meet(planned.servers)
        with self._mu:
            self._happened.wait_for(lambda: self._worker.has_heard_of(planned.generation), _HEAR_S)
            effects = self._worker.begin(planned, round_number)
        for effect in effects:
            if isinstance(effect, GoAway):
                raise PeerLostError(effect.reason)
        self._follow(effects)

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

    def _act(self, message: FromCoordinator) -> None:
        self._happens(lambda: self._worker.on_message(message, time.monotonic()))

    def _closed(self, loss: PeerFailure) -> None:
        self._happens(lambda: self._worker.on_closed(loss.kind, loss.rank))

    def _look(self) -> None:
        with self._mu:
            new = self._worker.not_met()
        for server in new:
            self._answers(server)
        self._happens(lambda: self._worker.on_time(time.monotonic()))
        workers, servers = self._plane.silent(self._lease_s), self._plane.silent_servers(self._lease_s)
        with self._mu:
            waited_for = self._worker.waits_for(workers, servers)
        self._member.waits(waited_for)

    def meet(self, members: Iterable[Process]) -> None:
        """Wait until each server among these answers, or is lost. Raises PeerLostError."""
        deadline_s = time.monotonic() + _MEET_S
        for server in members:
            while not self._worker.known.has_met(server):
                if not self._answers(server) and time.monotonic() > deadline_s:
                    raise PeerLostError(
                        f"{server} has not answered this worker in {_MEET_S:g} s; it must be started again"
                    )

    def _answers(self, server: Process) -> bool:
        """Whether it answers now. A connection to its slot that is found closed was to the one before it."""
        if answers := self._plane.answers(server.slot, _ANSWER_S):
            self._watch.tell()
            with self._mu:
                self._worker.met(server)
        return answers

    def _happens(self, event: Callable[[], Effects]) -> None:
        with self._mu:
            effects = event()
            self._happened.notify_all()
        self._follow(effects)

    def _follow(self, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, Tell):
                self._member.follow(effect)
            else:
                self._tell_training(effect)
