"""Decides who is lost and who may enter. A pure state machine: messages and the time in, records and messages out.

    gathering   until all that the job starts with have joined
    asking      all workers are told to freeze, and name their first incomplete round
    steady      workers have been told to resume, and make anew T, the largest of these rounds

A confirmed loss leads to asking from wherever it is, with a new generation, and so does a restart. Entering and leaving
do not: workers vote on them in the sums, and the coordinator only offers entries and takes note of who has left.
"""

from __future__ import annotations

from collections.abc import Iterable

from dynamix_ps.membership.generations import Generations, Output
from dynamix_ps.membership.journal import Founded, Joined, Left
from dynamix_ps.membership.messages import (
    AskLeave,
    Broken,
    Ended,
    Enter,
    Freeze,
    FromCoordinator,
    Join,
    Leave,
    LeaveAsked,
    MayPush,
    Process,
    Ready,
    Refused,
    Status,
    Suspect,
    ToCoordinator,
    Waiting,
)


class Coordinator(Generations):
    """Not thread safe. Each call returns what follows from it."""

    def restart(self, now_s: float) -> Output:
        """Ask all anew, with the members of the journal. Processes join again."""
        if not self.members.founded:
            self._found()
        elif not self.members.finished:
            self._begin_change()
        return self._settle(now_s)

    def on_message(self, sender: Process, message: ToCoordinator, now_s: float) -> Output:
        """`now_s`: of any clock that does not go back."""
        if sender in self.members.gone or self.members.finished:
            if isinstance(message, Join):
                self._send(sender, self._refusal(sender))
            return self._settle(now_s)
        self._suspicions.heard(sender, now_s)
        match message:
            case Join():
                self._suspicions.waits(sender, frozenset())  # until it says so again
                self._join(sender)
            case Suspect(process):
                self._suspect(process, sender, now_s)
            case Waiting(processes):
                self._suspicions.waits(sender, processes & (self.members.workers | self.members.servers))
            case Broken(generation) if self.members.founded and generation == self.members.generation:
                self._begin_change()
            case Status(generation, first_incomplete):
                if self.change and generation == self.members.generation:
                    self.change.statuses[sender] = first_incomplete
            case Ready():
                self._with_state.add(sender)
            case Leave():
                self._leave(sender)
            case AskLeave(worker, number):
                self._ask_to_leave(worker, number)
        return self._settle(now_s)

    def _suspect(self, suspect: Process, sender: Process, now_s: float) -> None:
        """Who knows the slot alone has heard of no members yet: it means the process that the job began with."""
        there = self.members.of_role(suspect)
        by_slot = there & (self.members.founders or there) if not suspect.incarnation else frozenset()
        for process in [one for one in there if one == suspect or (one in by_slot and one.slot == suspect.slot)]:
            self._suspicions.closed(process, sender, now_s)

    def heard(self, process: Process, now_s: float) -> None:
        """A heartbeat: `process` is alive."""
        self._suspicions.heard(process, now_s)

    def on_time(self, now_s: float) -> Output:
        """Call several times per second: suspicions are confirmed, and leases run out, while no message comes."""
        return self._settle(now_s)

    # Who comes and who leaves.

    def _join(self, process: Process) -> None:
        members = self.members
        if process in members.of_role(process):
            return self._repeat(process)
        if process.role == "worker" and process.slot >= self.settings.max_workers:
            reason = f"slot {process.slot} does not exist, the job has max_workers: {self.settings.max_workers}"
            return self._send(process, Refused(members.generation, reason))
        earlier = [other for other in members.of_role(process) if other.slot == process.slot]
        self._record(Joined(process))
        self._repeat_request(process)
        for other in earlier:
            self._lose(other, f"{process} has taken its place")
        if not members.founded:
            return self._found()
        self._tell_servers({process} if process.role == "server" else members.servers)
        if self.change is None:
            if process.role == "worker":
                self._send(process, self._resume_now())
            for worker in sorted(members.workers - {process}):
                self._send(worker, Enter(members.entries[-1]))
        return None

    def _found(self) -> None:
        members, settings = self.members, self.settings
        if len(members.workers) >= settings.workers and len(members.servers) >= settings.servers:
            self._record(Founded())
            self._tell_servers(members.servers)
            self._begin_change()

    def _repeat(self, process: Process) -> None:
        """A connection was made anew, and messages may be lost with the old one."""
        if process.role == "worker" and self.finish is not None:
            self._send(process, self.finish)
        self._repeat_request(process)
        if process.role == "server":
            if self.members.founded:
                self._tell_servers({process})
        elif self.change is None:
            if self.members.founded:
                self._send(process, self._resume_now())
        elif process in self.change.asked:
            self._send(process, Freeze(self.members.generation))

    def _tell_servers(self, servers: Iterable[Process]) -> None:
        """Whose pushes they may have to wait for."""
        for server in sorted(servers):
            self._send(server, MayPush(frozenset(self.members.workers)))

    def _leave(self, worker: Process) -> None:
        self._suspicions.forget(worker)
        self._record(Left(worker))
        if self.change:
            self.change.forget(worker)
        self._with_state.discard(worker)

    def _ask_to_leave(self, worker: Process, number: int) -> None:
        """The launcher may know of a worker before that has joined."""
        if number > self._asked_to_leave.get(worker, 0):
            self._asked_to_leave[worker] = number
            if worker in self.members.workers:
                self._send(worker, LeaveAsked(number))

    def _repeat_request(self, process: Process) -> None:
        if (number := self._asked_to_leave.get(process)) is not None:
            self._send(process, LeaveAsked(number))

    def _refusal(self, process: Process) -> FromCoordinator:
        if self.members.finished:
            return Ended("the job is over")
        return Refused(self.members.generation, f"{process} was replaced in generation {self.members.generation}")
