"""A server's side, as the reference for the data plane. Pure.

A server knows nothing of members: each push says how many parts its sum has. It has memory for two rounds of a key. The
sum of a round is kept until the round after the next begins, which is not before all have pushed the next one.
"""

from __future__ import annotations

from typing import TypeAlias

from dynamix_ps.membership.data_messages import Answer, Push, Sum
from dynamix_ps.membership.messages import (
    COORDINATOR,
    Fence,
    Fenced,
    Join,
    Leave,
    Process,
    Processes,
    Refused,
    Suspect,
    Waiting,
)

Outgoing: TypeAlias = list[tuple[Process, Join | Fenced | Suspect | Waiting | Answer | Refused]]


class WrongPush(RuntimeError):
    """A push that cannot be: the protocol, or who follows it, is wrong."""


class Server:
    """Not thread safe. Calls return the messages that follow from them, in the order to be sent."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.generation = 0
        self.first_round = 0  # T of the last fence
        self.gone: Processes = frozenset()
        self.sums: dict[tuple[int, int], Sum] = {}  # by key and parity of the round
        self._workers: Processes = frozenset()  # that may push
        self._closed: set[Process] = set()
        self._left: set[Process] = set()

    def join(self) -> Outgoing:
        """To be sent on every new connection to the coordinator."""
        closed = sorted(self._closed - self.gone)
        return [(COORDINATOR, Join()), *((COORDINATOR, Suspect(process)) for process in closed)]

    def on_message(self, sender: Process, message: Fence | Push | Leave) -> Outgoing:
        """Raises WrongPush if a push contradicts the others."""
        match message:
            case Fence():
                return self._fence(message)
            case Push():
                return self._push(sender, message)
            case Leave():
                self._left.add(sender)
                return []

    def on_closed(self, worker: Process) -> Outgoing:
        """The connection to a worker closed."""
        self._closed.add(worker)
        return [(COORDINATOR, Suspect(worker))] if worker not in self.gone | self._left else []

    def waiting(self) -> Processes:
        """Whose parts are missing, as far as a server knows."""
        begun = [sum_ for sum_ in self.sums.values() if not sum_.complete]
        return frozenset().union(*(self._workers.difference(sum_.parts) for sum_ in begun))

    def _fence(self, fence: Fence) -> Outgoing:
        if fence.generation > self.generation:
            self.generation, self.first_round, self.gone = fence.generation, fence.first_round, fence.gone
            for place, sum_ in list(self.sums.items()):
                if sum_.round >= fence.first_round:
                    sum_.overwritten = True
                    del self.sums[place]
        if fence.generation >= self.generation:
            self._workers = fence.workers  # not `gone`: the last pushes of who has left may still be on their way
            self._closed -= fence.gone
            self._left -= fence.gone
        return [(COORDINATOR, Fenced(fence.generation))]

    def _push(self, worker: Process, push: Push) -> Outgoing:
        if worker in self.gone:
            return [(worker, Refused(self.generation, f"{worker} is no member of generation {self.generation}"))]
        if push.generation < self.generation and push.round >= self.first_round:
            return []  # it is sent again
        if push.generation > self.generation:
            raise WrongPush(f"{self.process}: generation {push.generation}, and the fence is {self.generation}")
        sum_ = self._sum_of(push)
        if worker in sum_.parts or push.expected != sum_.expected or sum_.complete:
            raise WrongPush(f"{self.process}: {worker} pushes {push}, the sum is {sum_}")
        sum_.parts[worker] = push.part
        if not sum_.complete:
            return []
        answer = Answer(sum_.generation, sum_.round, push.key, sum_)
        return [(receiver, answer) for receiver in sorted(sum_.parts)]

    def _sum_of(self, push: Push) -> Sum:
        place = push.key, push.round % 2
        present = self.sums.get(place)
        if present and (present.round, present.generation) == (push.round, push.generation):
            return present
        if present and present.round >= push.round:
            raise WrongPush(f"{self.process}: a push of round {push.round}, and round {present.round} is begun")
        if present:
            present.overwritten = True
        self.sums[place] = Sum(push.generation, push.round, push.expected)
        return self.sums[place]
