"""Sums over a ring that go on when a worker is lost. Rounds are those of elastic.py: the control plane sees one story.

There are no servers that keep a sum. So each worker keeps the sums of the last round that it has completed, as they
were: what it hands out, the training clips and zeroes. In a change

    1. `freeze` gives the ring up: nothing of it counts from then on, whether it is complete, fails or hangs
    2. `resume` makes a new ring of those that are left, in a thread of its own
    3. in it each names its round. Where some are at T-1, the lowest one at T sends them the sums of T-1, which it keeps
    4. all make round T of their own values, which are unchanged: gloo sums in a copy

So nobody takes the state of another, and no completed round is made twice. It costs two gradients of memory: the copy
of the present round, and that of the one before.

A worker leaves with a round: the others make a new ring before the next one, in a thread of its own too. Who has left
stays in the old ring until all say that they have completed this round: it passes on what they send each other.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from dynamix_ps.addresses import split_host_port
from dynamix_ps.comm.elastic import Loss
from dynamix_ps.comm.ring_group import MEETING_S, Given, Over, RingGroup, meet
from dynamix_ps.comm.store_watch import StoreWatch

logger = logging.getLogger("dynamix")
_SLICE_S = 0.1  # so often a wait for a ring sees that it was given up: only its neighbours see a lost worker
_PROBE_S = 1.0
_DEPART_S = 10.0  # so long does a worker that ends wait for the others to complete its last round


class Position(NamedTuple):
    """How far the sums of a worker are."""

    first_incomplete: int


@dataclass(slots=True, eq=False)
class _Part:
    """A buffer of the open round."""

    name: str
    buffer: Any  # own values, until the round is complete
    begin: int
    sum: Any = None  # the copy in which the ring sums
    work: Any = None
    is_summed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Change:
    """What a new ring is made for."""

    generation: int
    first_round: int
    members: Mapping[int, str]
    before: RingGroup | None = None  # in which no round is made any more, in order


class ElasticRing:
    """The sums of this worker: the training thread pushes and waits, the control plane does the rest.

    Args:
        rank: of this worker.
        group: the ring of all workers.
        address: where the members of a generation can meet, if this worker is the lowest of them.
    """

    def __init__(self, rank: int, group: RingGroup, address: str) -> None:
        self.address = address
        self._rank = rank
        self._changed = threading.Condition()  # of all below
        self._group: RingGroup | None = group  # None: no round completes
        self._given_up: list[RingGroup] = []
        self._generation = self._round = 0
        self._open: list[_Part] = []
        self._first_handle = 0  # of the open round
        self._kept: dict[str, Any] = {}  # sums of the round before, in the order of its pushes
        self._spare: dict[str, Any] = {}  # memory, by name of the buffer
        self._change: _Change | None = None  # the ring that is being made
        self._makers: list[threading.Thread] = []
        self._members: Mapping[int, str] = {}  # of the last generation: address by rank
        self._addresses: Mapping[int, str] = {}  # of the next one
        self._is_broken = False
        self._told: set[int] = set()  # who is gone
        self._moved_s = time.monotonic()  # when something came of others, or went to them
        self._watch = StoreWatch()

    # The training thread.

    def push_pull(self, name: str, buffer: Any, begin: int) -> int:
        """As in Comm."""
        with self._changed:
            self._moved_s = time.monotonic()
            self._open.append(_Part(name, buffer, begin))
            if self._group is not None:
                self._start(self._open[-1], self._group)
            return self._first_handle + len(self._open) - 1

    def wait(self, handle: int, timeout_s: float) -> bool:
        """Whether the round of this push is complete. It is so as a whole, with the first wait that returns true."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            with self._changed:
                if handle < self._first_handle:
                    return True
                left_s = deadline_s - time.monotonic()
                group, part = self._group, next((part for part in self._open if not part.is_summed), None)
                if group is None or self._is_broken:
                    if left_s <= 0 or not self._changed.wait(left_s):
                        return False
                    continue
                if part is None:
                    self._complete()
                    return True
            self._await(group, part, part.work, min(left_s, _SLICE_S))
            if not part.is_summed and time.monotonic() >= deadline_s:
                return False

    def _await(self, group: RingGroup, part: _Part, work: Any, timeout_s: float) -> None:
        try:
            work.wait(timedelta(seconds=max(timeout_s, 1e-3)))  # 0 means no limit
        except RuntimeError:
            if not work.is_completed():
                return
        with self._changed:
            if group is self._group:
                self._moved_s = time.monotonic()
                part.is_summed = work.is_success()
                self._is_broken |= not part.is_summed
                self._changed.notify_all()

    def _start(self, part: _Part, group: RingGroup) -> None:
        memory = self._spare.pop(part.name, None)
        if memory is None or (memory.shape, memory.dtype) != (part.buffer.shape, part.buffer.dtype):
            memory = part.buffer.new_empty(part.buffer.shape)
        memory[: part.begin] = 0
        memory[part.begin :] = part.buffer[part.begin :]
        part.sum, part.work = memory, group.sum(memory)

    def _complete(self) -> None:
        for part in self._open:
            part.buffer[part.begin :] = part.sum[part.begin :]
        self._spare.update(self._kept)
        self._kept = {part.name: part.sum for part in self._open}
        self._first_handle += len(self._open)
        self._open = []
        self._round += 1
        self._given_up = [group for group in self._given_up if not group.is_idle]

    # The control plane.

    def freeze(self) -> Position:
        """No round completes from now on, until `resume`."""
        with self._changed:
            self._give_up()
            return Position(self._round)

    def status(self) -> Position:
        """How far the sums are."""
        with self._changed:
            return Position(self._round)

    def meet(self, addresses: Mapping[int, str]) -> None:
        """With whom it goes on at the next `resume`, itself included: the address of each by rank."""
        self._addresses = addresses

    def unanswered(self) -> frozenset[int]:
        """None: there are no servers."""
        return frozenset()

    def resume(self, generation: int, round_number: int, contributions: int, lost_servers: Collection[int]) -> None:
        """Go on with so many workers, those of the last `meet`. `round_number` is the first round that they make.

        Returns at once. Raises ValueError if this worker is neither there nor one behind, or has had this generation.
        """
        with self._changed:
            assert len(self._addresses) == contributions, "the coordinator has named the members"
            if generation <= self._generation or round_number - self._round not in (0, 1):
                raise ValueError(
                    f"cannot resume with generation {generation} at round {round_number}: this worker is at round "
                    f"{self._round}, and each generation comes once"
                )
            self._give_up()
            self._generation = generation
            self._begin(round_number)

    def expect(self, contributions: int) -> None:
        """From the next round on so many go on, those of the last `meet`: some have left with the round before.

        For the thread that trains, between two rounds. Nothing happens if a decision on losses knows of it already, or
        is under way.
        """
        with self._changed:
            assert len(self._addresses) == contributions and not self._open, "between two rounds"
            before = self._group
            if before is not None and self._addresses.keys() != self._members.keys():
                self._give_up()
                self._begin(self._round, before)

    def depart(self, over: Callable[[], bool]) -> bool:
        """The last round of this worker is complete: wait until it is so on all others of the ring, or it is `over`.

        Returns whether it is. Waits a few seconds at most, as long as changes are under way, too.
        """
        deadline_s = time.monotonic() + _DEPART_S
        while not over() and time.monotonic() < deadline_s:
            with self._changed:
                group = self._group
                if group is None:
                    self._changed.wait(_SLICE_S)
                    continue
            group.finish()
            if group.is_finished(_SLICE_S):
                return True
        return False

    def _begin(self, first_round: int, before: RingGroup | None = None) -> None:
        """Make the ring of those who have been named."""
        self._members, self._moved_s = self._addresses, time.monotonic()
        self._change = _Change(self._generation, first_round, self._members, before)
        self._makers = [maker for maker in self._makers if maker.is_alive()]
        maker = threading.Thread(target=self._make, args=(self._change,), name="dynamix-ring", daemon=True)
        self._makers.append(maker)
        maker.start()

    def enter(self, generation: int, round_number: int, contributions: int, lost_servers: Collection[int]) -> None:
        """Raises RuntimeError: nobody enters a ring."""
        raise RuntimeError("workers enter over BytePS alone")

    def next_loss(self, timeout_s: float) -> Loss | None:
        """A worker whose process is gone, found by who sees the ring break. None: there is none within `timeout_s`."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_broken, timeout_s):
                return None
            others = {rank: self._members[rank] for rank in self._members.keys() - self._told - {self._rank}}
        for rank, address in sorted(others.items()):
            if _is_gone(address):
                self._told.add(rank)
                return Loss("worker", rank)
        with self._changed:
            self._changed.wait_for(lambda: not self._is_broken, timeout_s)
        return None

    def silent(self, quiet_s: float) -> frozenset[int]:
        """Members for which this worker waits, and whose process has not answered for `quiet_s`.

        Its store is asked, which answers whatever the script is busy with.
        """
        with self._changed:
            waits = self._change is not None or (self._group is not None and bool(self._open))
            quiet_for_s = time.monotonic() - self._moved_s if waits else 0.0
            others = {rank: self._members[rank] for rank in self._members.keys() - {self._rank}}
        if quiet_for_s < quiet_s / 2:
            return frozenset()
        return self._watch.silent(others, quiet_s / 2)

    def close(self) -> None:
        """The process ends, and its last round is complete."""
        with self._changed:
            self._give_up()
        for maker in self._makers:
            maker.join(2 * MEETING_S)  # that it does not meet the end of the interpreter
        for group in self._given_up:
            group.abandon()

    def _give_up(self) -> None:
        """The ring, and what was pushed to it: gloo may still write into the copies, so nobody uses them again."""
        if self._group is not None:
            self._given_up.append(self._group)
        self._group = self._change = None
        self._is_broken = False
        for part in self._open:
            part.sum, part.is_summed = None, False
        self._changed.notify_all()

    def _make(self, change: _Change) -> None:
        def over() -> bool:
            return self._change is not change

        if change.before is not None:
            change.before.finish()
        try:
            name = f"generation {change.generation}, round {change.first_round}"
            group = meet(name, self._rank, change.members, over)
            try:
                received = self._caught_up(group, change, over)
            except BaseException:
                with self._changed:
                    self._given_up.append(group)
                raise
        except Given:
            return
        except RuntimeError as error:  # one more is lost; the coordinator finds that out, and decides anew
            said = str(error).strip().splitlines()[-1:]
            logger.warning("generation %d has no ring: %s", change.generation, "".join(said))
            return
        with self._changed:
            if over():
                self._given_up.append(group)
                return
            self._group, self._change, self._moved_s = group, None, time.monotonic()
            for part in self._open:
                if received is None:
                    self._start(part, group)
                else:
                    part.sum, part.is_summed = received[part.name], True
            self._changed.notify_all()

    def _caught_up(self, group: RingGroup, change: _Change, over: Over) -> dict[str, Any] | None:
        """The sums of round T-1, if this worker lacks them. Nobody pushes or completes there while there is no ring."""
        rounds = group.gather(self._round, over)
        if min(rounds) == change.first_round:
            return None
        sender, is_behind = rounds.index(change.first_round), self._round < change.first_round
        sums = {part.name: part.buffer for part in self._open} if is_behind else self._kept
        if sorted(change.members)[sender] != self._rank:  # only the one that sends may show what it keeps
            sums = {name: like.new_empty(like.shape) for name, like in sums.items()}
        group.spread(list(sums.values()), sender, over)
        return sums if is_behind else None


def _is_gone(address: str) -> bool:
    """Whether nothing listens there any more, on a machine that answers."""
    host, port = split_host_port(address)
    try:
        socket.create_connection((host, int(port)), _PROBE_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False
