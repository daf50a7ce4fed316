"""Changes of generation: from a confirmed loss to the decision that all follow. Pure; the base of the coordinator."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from dynamix_ps.membership.change import Change
from dynamix_ps.membership.journal import Began, Decided, Finished, Lost, Members, Record
from dynamix_ps.membership.losses import Suspicions
from dynamix_ps.membership.messages import (
    Ended,
    Finish,
    Freeze,
    FromCoordinator,
    Process,
    Processes,
    Refused,
    Resume,
)


@dataclass(frozen=True, slots=True)
class MembershipSettings:
    """Of one job."""

    workers: int  # that it starts with
    servers: int  # 0: a ring, which has none
    min_workers: int = 1
    max_workers: int = 1024  # slots
    confirm_s: float = 0.5  # a closed connection that one process has seen is a loss after this time
    lease_s: float = 5.0  # silence of a process that others wait for
    join_wait_s: float = 600.0  # below `min_workers`, or without a server; then the job ends


@dataclass(slots=True)
class Output:
    """First the records go to disk, then the messages out, in this order."""

    records: list[Record] = field(default_factory=list)
    messages: list[tuple[Process, FromCoordinator]] = field(default_factory=list)


class Generations:
    """Members, and the change that is under way."""

    def __init__(self, settings: MembershipSettings, records: Iterable[Record] = ()) -> None:
        """`records`: of earlier coordinators of this job, in order. Then call `restart`."""
        self.settings = settings
        self.members = Members(records)
        self.change: Change | None = None
        self._suspicions = Suspicions(settings.confirm_s, settings.lease_s)
        self._resume = Resume(0, 0, frozenset())  # the last decision; none yet
        self._with_state: set[Process] = set()  # workers that have the state of the training
        self._asked_to_leave: dict[Process, int] = {}  # workers, with the number of the newest request
        self.short_since_s: float | None = None  # since when too few are left, and wait for others
        self.finish: Finish | None = None  # nobody has come in time, so all save and end
        self._output = Output()

    # Each call ends here: losses first, then the next step of the change that is under way.

    def _settle(self, now_s: float) -> Output:
        while not self.members.finished and (
            lost := self._suspicions.confirmed(now_s, self._awaited(), self._irreplaceable())
        ):
            self._lose(*lost)
        if self.change and not self._awaited():
            self._decide(self.change, now_s)
        if self.members.founded and not (self.change or self.members.finished or self.training):
            self._end("all workers that had the state of the training have left")
        output, self._output = self._output, Output()
        return output

    def _awaited(self) -> set[Process]:
        return self.change.awaited if self.change else set()

    def _irreplaceable(self) -> Set[Process]:
        """The last server: nobody has its keys, so the others wait until it is back."""
        return self.members.servers if len(self.members.servers) == 1 else frozenset()

    def _lose(self, process: Process, reason: str) -> None:
        self._suspicions.forget(process)
        self._record(Lost(process, reason))
        told = f"{process} counts as lost: {reason}"
        self._send(process, Refused(self.members.generation, told))  # it may live, and hear it when it is back
        if self.members.founded:
            self._begin_change()

    def _begin_change(self) -> None:
        self._record(Began(self.members.generation + 1))
        self.change = Change(set(self.members.workers))
        for worker in sorted(self.members.workers):
            self._send(worker, Freeze(self.members.generation))

    def _decide(self, change: Change, now_s: float) -> None:
        members = self.members
        rounds = change.rounds(members.founders)
        if not rounds:
            return self._end("no worker is left that has the state of the training")
        if self._is_short(now_s) and not self._give_up(now_s):
            return None
        self._with_state = set(rounds)
        first_round = self._round_to_make_anew(rounds)
        self._record(Decided(members.generation, first_round))
        without_state = frozenset(change.asked - rounds.keys())
        self._resume = Resume(members.generation, first_round, frozenset(), without_state, members.founders)
        self.change = None
        for worker in sorted(members.workers):
            self._send(worker, self._resume_now())
        return None

    @property
    def training(self) -> Processes:
        """The workers that have the state of the training: all but newcomers."""
        return frozenset(self._with_state & self.members.workers)

    @property
    def short_of_workers(self) -> bool:
        """Whether the workers that are there wait for others."""
        return self.short_since_s is not None and len(self.members.workers) < self.settings.min_workers

    def _is_short(self, now_s: float) -> bool:
        """Whether too few are left, so that those who are there wait for others."""
        members, settings = self.members, self.settings
        if len(members.workers) >= settings.min_workers and (members.servers or not settings.servers):
            self.short_since_s = None
        elif self.short_since_s is None:
            self.short_since_s = now_s
        return self.short_since_s is not None

    def _give_up(self, now_s: float) -> bool:
        """Whether the time is over in which others may come. Then those who are there make the rounds at hand."""
        settings, workers = self.settings, self.members.workers
        assert self.short_since_s is not None
        if now_s - self.short_since_s < settings.join_wait_s and self.finish is None:
            return False
        waited = f", and none came within {settings.join_wait_s:g} s" if settings.join_wait_s else ""
        if settings.servers and not self.members.servers:
            self._end(f"no server is left{waited}")
            return False
        count = "1 worker is" if len(workers) == 1 else f"{len(workers)} workers are"
        self.finish = Finish(f"{count} left, elastic.min_workers is {settings.min_workers}{waited}")
        for worker in sorted(workers):
            self._send(worker, self.finish)
        return True

    def _round_to_make_anew(self, rounds: Mapping[Process, int]) -> int:
        """Somebody has completed the round before it, so all its parts have arrived; nobody has completed this one."""
        return max(rounds.values())

    def _resume_now(self) -> Resume:
        """The last decision, with what is known now about who has left and who may enter."""
        members = self.members
        return dataclasses.replace(self._resume, gone=frozenset(members.gone), entries=tuple(members.entries))

    def _end(self, reason: str) -> None:
        self._record(Finished(reason))
        self.change = None
        for process in sorted(self.members.workers | self.members.servers):
            self._send(process, Ended(reason))

    def _record(self, record: Record) -> None:
        self.members.apply(record)
        self._output.records.append(record)

    def _send(self, receiver: Process, message: FromCoordinator) -> None:
        self._output.messages.append((receiver, message))
