"""What a worker does in changes of membership. Pure: what happens goes in, what follows from it comes out.

The coordinator's word, closed connections and steps of the script are events. The sums of the worker are told what to
do: those of real BytePS, of a ring, or of a model of either. All else is returned, to be done in order: messages to the
coordinator, and the end of the training or of the process.

    Freeze   names the first round that it has not completed, and completes none from then on
    Resume   at T it sends again what it has pushed; at T-1 it completes T-1
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection
from typing import TypeAlias

from dynamix_ps.membership.effects import GoAway, Tell, suspicion
from dynamix_ps.membership.known_members import KnownMembers, Planned
from dynamix_ps.membership.messages import (
    Broken,
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
from dynamix_ps.membership.sums import WorkerSums

_AGAIN = "it must be started again"
_LAST_ANSWERS_S = 1.0  # what a lost server has sent may be on its way for so long

ForTraining: TypeAlias = GoAway | Finish | LeaveAsked
Effects: TypeAlias = list[Tell | ForTraining]


class Worker:
    """Not thread safe.

    Args:
        own: this worker.
        workers: that the job begins with.
        late: it comes while the others train, and takes part from `begin` on.

    Attributes:
        known: the members of the job.
        passed: it has left, and the others are in a change that it has no part in.
    """

    def __init__(self, own: Process, sums: WorkerSums, workers: int, late: bool = False) -> None:
        self.known = KnownMembers(own, workers, late)
        self.passed = False
        self._sums = sums
        self._generation = self._frozen = 0  # newest decision, and newest change for which it has named its round
        self._entries: dict[int, Process] = {}  # by version, all that were ever offered
        self._answers_due_s = math.inf  # then nothing of the lost servers is on its way any more
        self._named: int | None = None  # the round that it has named last
        self._counts_from = 0  # the first round that it may name
        self._request = 0  # number of the newest one to leave
        self._counted_on = False  # others may wait for this worker, which departs, in a round that it is not in
        self._is_closing = False  # it has said its last word

    @property
    def generation(self) -> int:
        """The newest decision that it follows; 0: the members of the job have not met, as far as it knows."""
        return self._generation

    # What the coordinator says.

    def on_message(self, message: FromCoordinator, now_s: float) -> Effects:
        """`now_s`: of any clock that does not go back."""
        effects: Effects = []
        match message:
            case Freeze(generation) | Resume(generation) if self._passes(generation):
                self.passed = True  # the others are beyond its last round; that it leaves is told next
            case Freeze(generation):
                effects = [Tell(Status(generation, self._freeze(generation)))]
            case Resume():
                effects = self._resume(message, now_s)
            case Enter(entry):
                self._entries[entry.version] = entry.process
            case LeaveAsked(number) if number > self._request:  # not one that is repeated
                self._request = number
                effects = [message]
            case Finish() if not self.known.is_late:
                effects = [message]
            case Refused(_, reason) | Ended(reason) | Finish(reason) if not self._is_closing:
                effects = [GoAway(reason)]
        return effects

    def _passes(self, generation: int) -> bool:
        """Whether it has left before this change. A decision that is repeated on a new connection begins none."""
        return self.known.own.slot in self.known.left and generation > self._generation

    def _freeze(self, generation: int) -> int | None:
        """The first incomplete round, which none completes from now on; none before it has what others may need."""
        self._frozen = max(self._frozen, generation)
        found = None if self.known.is_late else self._sums.freeze().first_incomplete
        self._named = None if found is None or found < self._counts_from else found
        return self._named

    def _resume(self, resume: Resume, now_s: float) -> Effects:
        """Sums go on with those that are left.

        Newcomers that have named no round are not among them: who would have given them the state may be lost.
        """
        self._entries.update({entry.version: entry.process for entry in resume.entries})
        if resume.generation <= self._generation:
            return []
        known, lost_before = self.known, self.known.lost
        if not self._generation:
            known.begin_with(resume.founders)
        known.decide(resume.gone, resume.without_state)
        self._generation = resume.generation
        if known.lost > lost_before:
            self._answers_due_s = now_s + _LAST_ANSWERS_S
        if why := self._why_it_ends(resume):
            return [GoAway(why)]
        if not known.is_late:
            members = {one.slot: one.address for one in known.planned.values() if one not in known.gone}
            self._sums.meet(members, known.left & members.keys())
            self._sums.resume(resume.generation, resume.first_round, len(known.present()), known.lost)
        return []

    def _why_it_ends(self, resume: Resume) -> str:
        """Why this worker does not go on with the others; empty: it does."""
        if self.known.own in self.known.refused:
            return f"the members have changed before it had the state of the training, or a sum with it; {_AGAIN}"
        if self.known.is_late:
            return ""
        if self.known.none_is_left:
            return "no server is left that has met all workers"
        if resume.first_round > (number := self._sums.status().first_incomplete) + 1:
            # The others have made a whole round without it, so it leaves, and they all know it.
            return (
                f"workers were lost before it had sum {number}, with which it leaves; the others are at sum "
                f"{resume.first_round}, and go on without it"
            )
        return ""

    # What it sees of the others.

    def on_closed(self, role: str, slot: int) -> Effects:
        """Its connection to this server or worker has ended, or the ring of this generation has failed for a while.

        A newcomer cannot tell which server of a slot it has lost before it knows who has keys: that server, or one
        before it. So it says nothing, and the others do.
        """
        if role == "ring":
            return [Tell(Broken(slot), keep=True)]
        known = {"server": self.known.connected(slot), "worker": self.known.planned.get(slot)}
        process = known.get(role)
        if process is None and role == "server" and not self.known.is_late:
            process = Process("server", slot, "")
        return [] if process is None else [suspicion(process)]

    def waits_for(self, workers: Collection[int], servers: Collection[int]) -> Processes:
        """The members in these slots, for which it waits in vain. It may need those that leave, too."""
        members = [one for one in self.known.planned.values() if one.slot in workers and one not in self.known.gone]
        return frozenset((*members, *self.known.serving(servers)))

    def on_time(self, now_s: float) -> Effects:
        """To be called several times per second. A sum of which a lost server had a part may come to nobody."""
        if self._is_closing or now_s < self._answers_due_s:
            return []
        if not (lacking := self._sums.unanswered() & self.known.lost):
            return []
        names = ", ".join(map(str, sorted(lacking)))
        return [GoAway(f"it lacks part of a sum that only server {names} had, which is lost")]

    def not_met(self) -> list[Process]:
        """Servers that are offered and have not answered this worker: only then may they get keys."""
        servers = [one for _, one in sorted(self._entries.items()) if one.role == "server"]
        return [one for one in servers if not self.known.has_met(one)]

    def met(self, server: Process) -> None:
        """It has answered. All connections to its slot that had ended by then are told before."""
        self.known.meet(server)

    # What the training does, between two rounds.

    def offered(self) -> dict[int, Process]:
        """The processes that were offered so far, by version, up to a server that this worker has not met yet."""
        held = sorted(self._entries.items())
        return dict(itertools.takewhile(lambda item: self.known.has_met(item[1]), held))

    def others_left(self, slots: Collection[int]) -> None:
        """The round that is complete was the last one of these workers.

        All workers say so between the same two rounds, so they need no word of the coordinator.
        """
        self.known.left.update(slots)
        if self.known.own.slot not in slots:
            self._expect()

    def take_in(self, entering: Collection[Process]) -> Planned:
        """These workers and servers, whom this worker has met, take part from the coming round on."""
        workers = {one.slot: one for one in entering if one.role == "worker"}
        self.known.planned |= workers
        self.known.left -= workers.keys()
        if servers := [one for one in entering if one.role == "server"]:
            self.known.place(servers)
            self._sums.use_servers_without(self.known.lost)
        self._expect()
        return self.planned()

    def planned(self) -> Planned:
        """Who makes the coming round."""
        return Planned(self.known.present(), list(self.known.placed.values()), self._generation)

    def _expect(self) -> None:
        """Those that are in the coming round make it."""
        self._sums.meet({one.slot: one.address for one in self.known.present()})
        self._sums.expect(len(self.known.present()))

    def has_heard_of(self, generation: int) -> bool:
        """Whether it knows of this decision, or of a later change."""
        return max(self._generation, self._frozen) >= generation

    def begin(self, planned: Planned, round_number: int) -> Effects:
        """This worker, which came late, has the state before a round, of a worker that has begun it.

        It has met the servers, and heard of the generation. Where another decision is under way, the others go on
        without a worker that had no state then.
        """
        if self._frozen > planned.generation or self._generation != planned.generation:
            return [GoAway(f"the members have changed while this worker got the state of the training; {_AGAIN}")]
        self.known.begin_with([*planned.workers, *planned.servers])
        present = self.known.present()
        self._sums.meet({one.slot: one.address for one in present})
        self._counts_from = self._sums.enter(planned.generation, round_number, len(present), self.known.lost)
        self.known.is_late = False
        return [Tell(Ready(), keep=True)]

    # Its end.

    def depart(self) -> None:
        """Its last round is complete. It leaves when the others have this round, or are in a change without it."""
        # Others that are behind may count on it after such a decision. They learn that it is gone by another one.
        in_decision = self.known.own.slot in self.known.left and not self.known.is_late
        self._counted_on = in_decision and self._named == self._sums.status().first_incomplete

    @property
    def need_not_stay(self) -> bool:
        """Whether the others do not need this worker, which departs, or cannot get what they need."""
        return self.passed or self._counted_on

    def last_word(self, departed: bool) -> ToCoordinator | None:
        """What it says at the end. `departed`: the others have its last round. None: it was in no round."""
        self._is_closing = True
        if self.known.is_late:
            return None
        return Suspect(self.known.own) if self._counted_on and not departed else Leave()
