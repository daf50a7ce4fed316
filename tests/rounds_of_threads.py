"""A data plane of threads: workers push and wait round by round, servers sum. For tests of losses."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple


class Lost(NamedTuple):
    kind: str
    rank: int


class At(NamedTuple):
    first_incomplete: int


class _Sum(NamedTuple):
    generation: int
    expected: int
    parts: set[int]


class _Plane:
    """What both sides have."""

    def __init__(self) -> None:
        self.losses: queue.SimpleQueue[Lost] = queue.SimpleQueue()
        self.missed: frozenset[int] = frozenset()  # ranks of workers that do not answer

    def silent(self, quiet_s: float) -> frozenset[int]:
        return self.missed

    def silent_servers(self, quiet_s: float) -> frozenset[int]:
        return frozenset()

    def next_loss(self, timeout_s: float) -> Lost | None:
        try:
            return self.losses.get(timeout=timeout_s)
        except queue.Empty:
            return None


class SumServer(_Plane):
    """The keys of every round that workers place here."""

    def __init__(self) -> None:
        super().__init__()
        self.mu = threading.Lock()
        self.sums: dict[tuple[int, int], _Sum] = {}  # by round and key
        self.generation, self.first_round = 0, 0
        self.dead = False

    def push(self, key: int, rank: int, number: int, generation: int, expected: int) -> frozenset[int] | None:
        """Who is in the sum, if it is complete now."""
        with self.mu:
            if self.dead or (number >= self.first_round and generation < self.generation):
                return None
            found = self.sums.setdefault((number, key), _Sum(generation, expected, set()))
            assert found.expected == expected, f"round {number}: {found.expected} and {expected} parts are expected"
            found.parts.add(rank)
            return frozenset(found.parts) if len(found.parts) == expected else None

    def die(self, slot: int, workers: Sequence[RoundWorker]) -> None:
        """As kill -9: nothing of it comes any more, and its connections close."""
        with self.mu:
            self.dead = True
        for worker in workers:
            worker.losses.put(Lost("server", slot))

    def fence(self, generation: int, round_number: int) -> None:
        with self.mu:
            self.generation, self.first_round = generation, round_number
            self.sums = {place: one for place, one in self.sums.items() if place[0] < round_number}


class RoundWorker(_Plane):
    """A worker that trains `rounds` rounds in a thread, one round after the other, unless it dies.

    Args:
        workers: all of them; `expected` is their number.
        servers: all of them. A round has as many keys, each at one of those that are left.
        before: called in its thread with the number of every round, before its pushes.
        after: the same after a round. Returns whether it goes on; otherwise it has left.
    """

    address = ""

    def __init__(
        self,
        rank: int,
        workers: Sequence[RoundWorker],
        expected: int,
        servers: Sequence[SumServer],
        before: Callable[[int], None],
        after: Callable[[int], bool] = lambda number: True,
    ) -> None:
        super().__init__()
        self.rank, self.done = rank, 0
        self.history: list[frozenset[int]] = []  # who was in every round
        self._workers, self._servers, self._before, self._after = workers, servers, before, after
        self._changed = threading.Condition()
        self._generation = self._first_round = 0
        self._expected, self._frozen = expected, False
        self._left = list(range(len(servers)))  # numbers of servers
        self._places = list(self._left)  # of the present round, by key
        self._answers: dict[int, frozenset[int]] = {}  # of the present round, by key
        self._pushed: list[int] = []  # keys
        self.dead = False
        self.thread = threading.Thread(target=self._train, daemon=True)

    def train(self, rounds: int) -> None:
        self.rounds = rounds
        self.thread.start()

    def die(self) -> None:
        """As kill -9: nothing of it comes any more, and its connections close."""
        with self._changed:
            self.dead = True
            self._changed.notify_all()
        for server in self._servers:
            server.losses.put(Lost("worker", self.rank))

    def freeze(self) -> At:
        with self._changed:
            self._frozen = True
            return At(self.done)

    def unanswered(self) -> frozenset[int]:
        with self._changed:
            return frozenset(self._places[key] for key in self._pushed if key not in self._answers)

    def meet(self, addresses: Mapping[int, str], leaving: Collection[int] = ()) -> None:
        self.others = frozenset(addresses) - frozenset(leaving)

    def resume(self, generation: int, round_number: int, contributions: int, lost_servers: Collection[int]) -> None:
        with self._changed:
            assert len(self.others) == contributions
            assert self._frozen and generation > self._generation and round_number - self.done in (0, 1)
            self._generation, self._first_round = generation, round_number
            self._expected, self._frozen = contributions, False
            self._left = [server for server in range(len(self._servers)) if server not in lost_servers]
            if round_number == self.done:
                self._answers.clear()
                self._place()
                again = list(self._pushed)
            else:
                again = []
            self._changed.notify_all()
        for key in again:
            self._push(key)

    def _place(self) -> None:
        self._places = [self._left[key % len(self._left)] for key in range(len(self._servers))]

    def status(self) -> At:
        with self._changed:
            return At(self.done)

    def use_servers_without(self, lost_servers: Collection[int]) -> None:
        with self._changed:
            assert not self._pushed, "between two rounds"
            self._left = [server for server in range(len(self._servers)) if server not in lost_servers]
            self._place()

    def answers(self, server: int, limit_s: float) -> bool:
        """A dead one does not: the next one in its place is not there yet."""
        return not self._servers[server].dead

    def expect(self, contributions: int) -> None:
        with self._changed:
            assert not self._pushed, "between two rounds"
            self._expected = contributions

    def depart(self, over: Callable[[], bool]) -> bool:
        return True

    def enter(self, generation: int, round_number: int, contributions: int, lost_servers: Collection[int]) -> int:
        with self._changed:
            assert len(self.others) == contributions
            self._generation, self.done, self._expected = generation, round_number, contributions
            self._left = [server for server in range(len(self._servers)) if server not in lost_servers]
            self._place()
        return round_number

    def _train(self) -> None:
        for number in range(self.done, self.rounds):
            self._before(number)
            for key in range(len(self._servers)):
                with self._changed:
                    if self.dead:
                        return
                    self._pushed.append(key)
                self._push(key)
            with self._changed:
                ready = self._changed.wait_for(lambda: self.dead or self._complete(), timeout=60)
                assert ready, f"worker {self.rank} waits in round {number}: {self._answers}"
                if self.dead:
                    return
                assert len(set(self._answers.values())) == 1, f"worker {self.rank} round {number}: {self._answers}"
                self.history.append(self._answers[0])
                self.done += 1
                self._answers.clear()
                self._pushed.clear()
                self._place()
            if not self._after(number):
                return

    def _complete(self) -> bool:
        return not self._frozen and len(self._answers) == len(self._places)

    def _push(self, key: int) -> None:
        with self._changed:
            number, generation, expected = self.done, self._generation, self._expected
            server = self._servers[self._places[key]]
        present = server.push(key, self.rank, number, generation, expected)
        if present is None:
            return
        for worker in self._workers:
            if worker.rank in present:
                worker.receive(key, number, generation, present)

    def receive(self, key: int, number: int, generation: int, present: frozenset[int]) -> None:
        with self._changed:
            is_void = number >= self._first_round and generation < self._generation
            if self.dead or number != self.done or is_void:
                return
            self._answers[key] = present
            self._changed.notify_all()
