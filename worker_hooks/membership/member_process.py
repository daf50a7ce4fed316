"""This process as a member of an elastic job, for all trainings in it: whom it meets, takes in, and leaves."""

from __future__ import annotations

import atexit
import os
import socket
import uuid
from collections.abc import Callable, Collection
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

from dynamix_ps.comm.followed_sums import SumGiver, SumTaker
from dynamix_ps.comm.peers import PeerListener
from dynamix_ps.config import variables
from dynamix_ps.errors import PeerLostError, TrainingError
from dynamix_ps.membership.effects import GoAway
from dynamix_ps.membership.known_members import Planned
from dynamix_ps.membership.messages import Finish, LeaveAsked, Process, incarnation_of
from worker_hooks.membership.arrival import StateCopy, follow, give
from worker_hooks.membership.handover import Handover
from worker_hooks.process.failure import end_beside_training
from worker_hooks.process.termination import TERMINATION

if TYPE_CHECKING:
    from dynamix_ps.comm import Comm
    from dynamix_ps.comm.plane import WorkerPlane
    from dynamix_ps.membership.worker import ForTraining
    from dynamix_ps.rpc.access import ArbitratorAccess
    from worker_hooks.membership.member import WorkerMember
    from worker_hooks.settings import Settings

_FOUNDED_S = 30.0  # the arbitrator of a busy machine starts within it
_LOOK_S = 0.5  # so often a wait lets signals in
_members: dict[str, WorkerMember] = {}  # by data plane, until this process ends


class MemberProcess:
    """The member that this process is. It becomes one when it meets the arbitrator."""

    _me: Process  # of a worker that comes late

    def __init__(self, settings: Settings, comm: Comm, plane: WorkerPlane) -> None:
        self._settings, self._comm, self._plane = settings, comm, plane

    @property
    def _member(self) -> WorkerMember:
        """Of a process that has met the arbitrator."""
        return _members[self._comm.name]

    @property
    def _has_met(self) -> bool:
        return self._comm.name in _members

    @property
    def _access(self) -> ArbitratorAccess:
        assert self._settings.arbitrator is not None, "members have met through the arbitrator"
        return self._settings.arbitrator

    def join(self) -> bool:
        """From now on the arbitrator counts this worker, which is one of those that began the job.

        Waits until all members of the job have met. Returns whether they have in time, or training ends anyway.
        """
        if not self._has_met:
            self._join(self._process())
        return self._member.wait_founded(_FOUNDED_S, lambda: TERMINATION.requested)

    def _join(self, me: Process, late: bool = False) -> None:
        from worker_hooks.membership.member import WorkerMember  # with gRPC

        member = WorkerMember(self._access, me, self._plane, self._comm.first_size, _follow, late)
        member.start()
        atexit.register(member.close)  # it leaves the others before it leaves the data plane
        _members[self._comm.name] = member
        os.register_at_fork(after_in_child=partial(atexit.unregister, member.close))

    def _process(self, state_address: str = "") -> Process:
        """This worker, by the name that the launcher knows it by, where there is one."""
        starts = variables.get(variables.STARTS)
        incarnation = uuid.uuid4().hex if starts is None else incarnation_of(int(starts))
        return Process("worker", self._comm.rank, incarnation, self._plane.address, state_address)

    # -- one that comes late ------------------------------------------------------------------------------------------

    def arrive(self) -> SumTaker:
        """Wait until one of the others connects, which gives this worker, which comes late, what it needs.

        Raises:
            TrainingError: its cluster file has no arbitrator.
            PeerLostError: the others are lost.
        """
        access = self._settings.arbitrator
        if access is None:
            raise TrainingError(
                "this worker has entered a job that trains, and knows no arbitrator: its cluster file has "
                f"mode: {self._settings.config.mode}, or {variables.ARBITRATOR} is not set; start it as the others"
            )
        own_host = variables.get("DMLC_NODE_HOST") or socket.gethostname()
        with closing(PeerListener(own_host, access.token, access.certificates)) as listener:
            self._me = self._process(listener.address)
            self._join(self._me, late=True)
            while (connection := listener.next(_LOOK_S)) is None:
                pass
            return SumTaker(connection)

    def is_among(self, entering: Collection[Process]) -> bool:
        """Whether this worker, which came late, is one of these."""
        return self._me in entering

    def meet(self, planned: Planned) -> None:
        """Wait until each server has answered this worker, which came late. Raises PeerLostError if one does not."""
        self._member.meet(planned.servers)

    def begin(self, planned: Planned, round_number: int) -> None:
        """This worker, which came late, is where the others are. Raises PeerLostError if they are elsewhere by now."""
        self._member.begin(planned, round_number)

    # -- those that train ---------------------------------------------------------------------------------------------

    def offered(self) -> dict[int, Process]:
        """Who may enter, by version of the entry, as far as this worker has heard."""
        return self._member.offered() if self._has_met else {}

    def planned(self) -> Planned:
        """Who makes the coming sum."""
        return self._member.planned()

    def take_in(self, entering: Collection[Process]) -> Planned:
        """These workers and servers are in the coming sum. All workers say so between the same two sums."""
        return self._member.take_in(entering)

    def let_follow(self, newcomer: Process, handover: Handover, state: StateCopy) -> SumGiver:
        """Give a newcomer a copy of the state, and the sums after it, beside training."""
        return follow(self._access, newcomer, handover, state)

    def give_state(self, newcomer: Process, handover: Handover, write: Callable[[BinaryIO], None]) -> bool:
        """Give a newcomer what it needs. Returns whether it has it; if not, the others are told that it is gone."""
        given = give(self._access, newcomer, handover, write)
        if not given:
            self.is_gone(newcomer)
        return given

    def is_gone(self, newcomer: Process) -> None:
        """A newcomer cannot be reached: the others are told."""
        self._member.suspect(newcomer)

    # -- those that leave ---------------------------------------------------------------------------------------------

    @property
    def may_leave(self) -> bool:
        """Whether this worker can leave the others, which then go on: all members of the job have met."""
        return self._has_met and self._member.founded

    def others_left(self, slots: Collection[int]) -> None:
        """The sum that is complete was the last one of these workers. All workers say so between the same two sums."""
        self._member.others_left(slots)

    def leave(self) -> None:
        """This worker has had its last sum: it takes part in none any more, and is not lost when it ends."""
        self._comm.left = True
        self._member.close()


def _follow(word: ForTraining) -> None:
    match word:
        case LeaveAsked():
            TERMINATION.leave()
        case Finish(reason):
            TERMINATION.finish(reason)
        case GoAway(reason):  # what this worker would go on with is of no use
            end_beside_training(PeerLostError(f"this worker cannot go on: {reason}"))
