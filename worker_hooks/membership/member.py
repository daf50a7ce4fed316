"""A worker's part in changes of membership, in threads beside training.

The training thread waits for none of them. While the others are asked where they are, its sum is not complete, and that
is all it sees of a change.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable

from dynamix_ps.comm.plane import WorkerPlane
from dynamix_ps.errors import PeerLostError
from dynamix_ps.membership.messages import (
    Ended,
    Enter,
    Finish,
    Freeze,
    FromCoordinator,
    Leave,
    LeaveAsked,
    Process,
    Processes,
    Ready,
    Refused,
    Resume,
    Status,
    Suspect,
    ToCoordinator,
)
from dynamix_ps.rpc.access import ArbitratorAccess
from dynamix_ps.rpc.member import Member
from worker_hooks.membership.handover import Planned
from worker_hooks.membership.known_members import KnownMembers
from worker_hooks.process.failure import end_beside_training

logger = logging.getLogger("dynamix")
_LOOK_S = 0.5  # a thread that waits for losses sees so often whether it is to end, and whether others are silent
_LOOKS_PER_LEASE = 10  # at least
_AGAIN = "it must be started again"
_LAST_ANSWERS_S = 1.0  # what a lost server has sent may be on its way for so long
_MEET_S = 60.0  # until a server that comes late must answer
_HEAR_S = 10.0  # until a newcomer must have heard of the generation that the others are in


class WorkerMember:
    """Keeps the sums of a worker in step with the members of the job.

    Args:
        process: this worker.
        plane: its sums.
        workers: that the job begins with.
        late: it comes while the others train, and takes part from `begin` on.
        finish: called, with the reason, when too few are left, and the training is to end with a checkpoint.
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
        late: bool = False,
        finish: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._plane, self._lease_s = plane, access.timeouts.lease_s
        self._asked, self._finish, self._replaced = asked, finish, replaced or _end
        self._mu = threading.Lock()  # of all below, and so that the plane is told of it in one order
        self._resumed = threading.Condition(self._mu)  # told of every new generation
        self._generation = self._frozen = 0  # newest decision, and newest change for which it has named its round
        self._known = KnownMembers(process, workers, late)
        self._entries: dict[int, Process] = {}  # by version, all that were ever offered
        self._answers_due_s = math.inf  # monotonic: then nothing of the lost servers is on its way any more
        self._named: int | None = None  # the round that it has named last
        self._counts_from = 0  # the first round that it may name
        self._request = 0  # number of the newest one to leave
        self._passed = False  # it has left, and the others are in a change
        self._departing = False
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

    def wait_founded(self, timeout_s: float) -> bool:
        """Wait until all members of the job have met, for so long at most. Returns whether they have."""
        with self._mu:
            return self._resumed.wait_for(lambda: self.founded, timeout_s)

    def others_left(self, slots: Collection[int]) -> None:
        """The round that is complete was the last one of these workers. Between two rounds, in the thread that trains.

        All workers call it between the same two rounds, so they need no word of the coordinator.
        """
        with self._mu:
            self._known.left.update(slots)
            if self._known.own.slot not in slots:
                self._expect()

    def suspect(self, process: Process) -> None:
        """It cannot be reached. Never blocks."""
        self._member.suspect(process.role, process.slot, process.incarnation)

    def entries(self) -> dict[int, Process]:
        """The processes that were offered so far, by version, up to a server that this worker has not met yet."""
        with self._mu:
            held = sorted(self._entries.items())
            return dict(itertools.takewhile(lambda item: self._known.has_met(item[1]), held))

    def take_in(self, entering: Collection[Process]) -> Planned:
        """These workers and servers take part from the coming round on. Between two rounds, in the thread that trains.

        Raises PeerLostError if a server does not answer this worker, which came after the vote on it.
        """
        servers = [one for one in entering if one.role == "server"]
        self._await(servers)
        with self._mu:
            workers = {one.slot: one for one in entering if one.role == "worker"}
            self._known.planned |= workers
            self._known.left -= workers.keys()
            if servers:
                self._known.place(servers)
                self._plane.use_servers_without(self._known.lost)
            self._expect()
            return Planned(self._known.present(), list(self._known.placed.values()), self._generation)

    def begin(self, planned: Planned, round_number: int) -> None:
        """This worker has the state before a round, of a worker that has begun it.

        Raises PeerLostError if another decision is under way: the others go on without a worker that had no state then.
        So it does if a server does not answer this worker.
        """
        self._await(planned.servers)
        with self._mu:
            self._resumed.wait_for(lambda: max(self._generation, self._frozen) >= planned.generation, _HEAR_S)
            if self._frozen > planned.generation or self._generation != planned.generation:
                raise PeerLostError(f"workers were lost while this one got the state of the training; {_AGAIN}")
            self._known.begin_with([*planned.workers, *planned.servers])
            present = self._known.present()
            self._plane.meet({one.slot: one.address for one in present})
            self._counts_from = self._plane.enter(planned.generation, round_number, len(present), self._known.lost)
            self._known.is_late = False
        self._member.keep_telling(Ready())

    def _await(self, servers: Iterable[Process]) -> None:
        """Until each answers, or is lost. Raises PeerLostError."""
        deadline_s = time.monotonic() + _MEET_S
        for server in servers:
            while not self._known.has_met(server):
                if self._plane.answers(server.slot, _LOOK_S):
                    self._met(server)
                elif time.monotonic() > deadline_s:
                    raise PeerLostError(f"{server} has not answered this worker in {_MEET_S:g} s; {_AGAIN}")

    def _expect(self) -> None:
        """Those that are in the coming round make it."""
        self._plane.meet({one.slot: one.address for one in self._known.present()})
        self._plane.expect(len(self._known.present()))

    def _lacking(self) -> frozenset[int]:
        """Servers that are lost with a sum that this worker has not."""
        with self._mu:
            return self._plane.unanswered() & self._known.lost

    def close(self) -> None:
        """This worker's last round is complete: leave the others when they have it, too. Waits some seconds at most."""
        if self._departing:
            return
        self._departing = True
        # Others that are behind may count on it after such a decision. They learn that it is gone by another one.
        counted_on = self._known.own.slot in self._known.left and self._named == self._plane.status().first_incomplete
        # Still a member, whom they hear. Who has not entered has had no round.
        departed = self._known.is_late or self._plane.depart(lambda: self._passed or counted_on)
        last = Suspect(self._known.own) if counted_on and not departed else Leave()
        self._closing.set()
        self._member.close(None if self._known.is_late else last)
        self._watch.join(2 * _LOOK_S)

    def _watch_losses(self) -> None:
        while not self._closing.is_set():
            self._suspect_lost(min(_LOOK_S, self._lease_s / _LOOKS_PER_LEASE))
            self._meet()
            if time.monotonic() >= self._answers_due_s and (lacking := self._lacking()):
                names = ", ".join(map(str, sorted(lacking)))
                self._replaced(f"it lacks part of a sum that only server {names} had, which is lost")
            self._member.waits(self._waited_for_in_vain())

    def _suspect_lost(self, timeout_s: float) -> None:
        """All whose connections have closed, and the first one within this time.

        A newcomer cannot tell which server of a slot it has lost before it knows who has keys: that server, or one
        before it. So it says nothing, and the others do.
        """
        while (loss := self._plane.next_loss(timeout_s)) is not None:
            with self._mu:
                known = {"server": self._known.connected(loss.rank), "worker": self._known.planned.get(loss.rank)}
            process = known.get(loss.kind)
            if process is not None:
                self.suspect(process)
            elif loss.kind == "server" and not self._known.is_late:
                self._member.suspect(loss.kind, loss.rank)
            timeout_s = 0.0

    def _meet(self) -> None:
        """See whether servers that are offered answer: only then may they get keys."""
        with self._mu:
            servers = [one for _, one in sorted(self._entries.items()) if one.role == "server"]
            new = [one for one in servers if not self._known.has_met(one)]
        for server in new:
            if self._plane.answers(server.slot, _LOOK_S):
                self._met(server)

    def _met(self, server: Process) -> None:
        """It has answered. A connection to its slot that is found closed was to the one before it."""
        self._suspect_lost(0.0)
        with self._mu:
            self._known.meet(server)

    def _waited_for_in_vain(self) -> Processes:
        workers, servers = self._plane.silent(self._lease_s), self._plane.silent_servers(self._lease_s)
        with self._mu:
            silent = [one for one in self._known.present() if one.slot in workers]
            return frozenset((*silent, *self._known.serving(servers)))

    def _act(self, message: FromCoordinator) -> Iterable[ToCoordinator]:
        match message:
            case Freeze(generation) | Resume(generation) if self._passes(generation):
                self._passed = True  # the others are beyond its last round; that it leaves is told next
            case Freeze(generation):
                return [Status(generation, self._freeze(generation))]
            case Resume():
                self._resume(message)
            case Enter(entry):
                with self._mu:
                    self._entries[entry.version] = entry.process
            case LeaveAsked(number) if number > self._request:  # not one that is repeated
                self._request = number
                self._asked()
            case Finish(reason) if not self._known.is_late:
                self._finish(reason)
            case Refused(_, reason) | Ended(reason) | Finish(reason) if not self._closing.is_set():
                self._replaced(reason)
        return []

    def _passes(self, generation: int) -> bool:
        """Whether it has left before this change. A decision that is repeated on a new connection begins none."""
        return self._known.own.slot in self._known.left and generation > self._generation

    def _freeze(self, generation: int) -> int | None:
        """The first incomplete round, which none completes from now on; none before it has what others may need."""
        with self._mu:
            self._frozen = max(self._frozen, generation)
            found = None if self._known.is_late else self._plane.freeze().first_incomplete
            self._named = None if found is None or found < self._counts_from else found
            return self._named

    def _resume(self, resume: Resume) -> None:
        """Sums go on with those that are left.

        Newcomers that have named no round are not among them: who would have given them the state may be lost.
        """
        with self._mu:
            self._entries.update({entry.version: entry.process for entry in resume.entries})
            if resume.generation <= self._generation:
                return
            lost_before = self._known.lost
            if not self._generation:
                self._known.begin_with(resume.founders)
            self._known.decide(resume.gone, resume.without_state)
            self._generation = resume.generation
            self._resumed.notify_all()
            why = self._why_it_ends(resume)
            if not self._known.is_late and not why:
                members = {one.slot: one.address for one in self._known.planned.values() if one not in self._known.gone}
                self._plane.meet(members, self._known.left & members.keys())
                self._plane.resume(resume.generation, resume.first_round, len(self._known.present()), self._known.lost)
            if self._known.lost > lost_before:
                self._answers_due_s = time.monotonic() + _LAST_ANSWERS_S
            count = len(self._known.present())
        logger.info("generation %d: %d workers from round %d", resume.generation, count, resume.first_round)
        if why:
            self._replaced(why)

    def _why_it_ends(self, resume: Resume) -> str:
        """Why this worker does not go on with the others; empty: it does."""
        if self._known.own in self._known.refused:
            return f"workers were lost before it had the state of the training, or a sum with it; {_AGAIN}"
        if self._known.is_late:
            return ""
        if self._known.none_is_left:
            return "no server is left that has met all workers"
        if resume.first_round > (number := self._plane.status().first_incomplete) + 1:
            # The others have made a whole round without it, so it leaves, and they all know it.
            return (
                f"workers were lost before it had sum {number}, with which it leaves; the others are at sum "
                f"{resume.first_round}, and go on without it"
            )
        return ""


def _end(reason: str) -> None:
    """The others count this worker as lost: what it would go on with is of no use."""
    end_beside_training(PeerLostError(f"this worker cannot go on: {reason}"))
