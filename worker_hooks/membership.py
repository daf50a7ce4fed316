"""A worker's part in changes of membership, in threads beside training.

The training thread waits for none of them. While the others are asked where they are, its sum is not complete, and that
is all it sees of a change.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
from collections.abc import Callable, Collection, Iterable

from dynamix_ps.comm.plane import WorkerPlane
from dynamix_ps.errors import PeerLostError
from dynamix_ps.membership.messages import (
    Ended,
    Freeze,
    FromCoordinator,
    Leave,
    LeaveAsked,
    Process,
    Refused,
    Resume,
    Status,
    ToCoordinator,
)
from dynamix_ps.messages import Registration
from dynamix_ps.rpc.access import ArbitratorAccess
from dynamix_ps.rpc.member import Member
from worker_hooks.failure import exit_now

logger = logging.getLogger("dynamix")
_LOOK_S = 0.5  # a thread that waits for losses sees so often whether it is to end


class WorkerMember:
    """Keeps the sums of a worker in step with the members of the job.

    Args:
        process: this worker.
        plane: its sums.
        workers: that the job begins with.
        asked: called when somebody asks that this worker leaves.
        replaced: called, with the reason, when the others go on without this worker. It ends the process.
    """

    def __init__(
        self,
        access: ArbitratorAccess,
        process: Process,
        plane: WorkerPlane,
        workers: int,
        asked: Callable[[], None] = lambda: None,
        replaced: Callable[[str], None] | None = None,
    ) -> None:
        self._plane, self._process = plane, process
        self._asked, self._replaced = asked, replaced or _end
        self._generation = 0
        self._mu = threading.Lock()  # of the two below, and so that the plane is told of both in one order
        self._members = frozenset(range(workers))  # slots of those that are not lost
        self._left: frozenset[int] = frozenset()  # slots of those whose last round this worker has completed
        self._closing = threading.Event()
        self._member = Member(access, process, self._act)
        self._watch = threading.Thread(target=self._watch_losses, name="dynamix-losses", daemon=True)

    def start(self) -> None:
        """This worker is a member from now on. Returns at once."""
        self._member.start()
        self._watch.start()

    @property
    def founded(self) -> bool:
        """Whether all members of the job have met, as far as this one knows."""
        return self._generation > 0

    def others_left(self, slots: Collection[int]) -> None:
        """The round that is complete was the last one of these workers. Between two rounds, in the thread that trains.

        All workers call it between the same two rounds, so they need no word of the coordinator.
        """
        with self._mu:
            self._left |= frozenset(slots)
            self._plane.expect(len(self._members - self._left))

    def close(self) -> None:
        """All others have this worker's last sum: leave them. Waits a few seconds at most."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._member.close(Leave())
        self._watch.join(2 * _LOOK_S)

    def _watch_losses(self) -> None:
        while not self._closing.is_set():
            loss = self._plane.next_loss(_LOOK_S)
            if loss is not None and loss.kind in ("worker", "server"):
                self._member.suspect(loss.kind, loss.rank)

    def _act(self, message: FromCoordinator) -> Iterable[ToCoordinator]:
        match message:
            case Freeze(generation):
                return [Status(generation, self._plane.freeze().first_incomplete)]
            case Resume():
                self._resume(message)
            case LeaveAsked():
                self._asked()
            case Refused(_, reason) | Ended(reason) if not self._closing.is_set():
                self._replaced(reason)
        return []

    def _resume(self, resume: Resume) -> None:
        """Sums go on with those that are left, if all servers are: else they stay frozen until the job ends."""
        if resume.generation <= self._generation or any(one.role == "server" for one in resume.gone):
            return
        self._generation = resume.generation
        with self._mu:
            self._members = frozenset(worker.slot for worker in resume.founders - resume.gone)
            count = len(self._members - self._left)
            self._plane.resume(resume.generation, resume.first_round, count)
        logger.info("generation %d: %d workers from round %d", resume.generation, count, resume.first_round)


def become_member(
    access: ArbitratorAccess, me: Registration, plane: WorkerPlane, workers: int, asked: Callable[[], None]
) -> WorkerMember:
    """Follow changes of membership until this process ends, which leaves the others before it leaves the data plane.

    `workers` and `asked` are those of `WorkerMember`.
    """
    member = WorkerMember(access, Process("worker", me.rank, me.incarnation), plane, workers, asked)
    member.start()
    atexit.register(member.close)
    return member


def _end(reason: str) -> None:
    """The others count this worker as lost: what it would go on with is of no use."""
    print(f"error: the job goes on without this worker: {reason}", file=sys.stderr)
    exit_now(PeerLostError.exit_code)
