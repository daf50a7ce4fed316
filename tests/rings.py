"""Real rings over gloo, whose members are in one process. For tests of losses, of leaving and of entering."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from dynamix_ps.comm.ring.elastic import ElasticRing
from dynamix_ps.comm.ring.group import RingGroup
from dynamix_ps.comm.ring.stores import open_store
from dynamix_ps.comm.ring.sums import RingSums
from tests.launching import wait_for

PATIENCE_S = 20.0
SIZES = {"a": 5, "b": 300_000}


class Member:
    """One worker: its ring, and its two buffers. `store`: where others can meet, as long as somebody refers to it."""

    def __init__(self, rank: int, ring: ElasticRing, store: object) -> None:
        self.rank, self.ring, self.store = rank, ring, store
        self.buffers = {name: torch.zeros(size) for name, size in SIZES.items()}
        self.handles: list[int] = []

    def push(self, turn: int, begin: int = 0) -> None:
        """Values say whose they are, and of which turn."""
        self.handles = []
        for name, buffer in self.buffers.items():
            buffer[:] = 10**self.rank * (turn + 1)
            self.handles.append(self.ring.rounds.push_pull(name, buffer, begin))

    def wait(self, timeout_s: float = PATIENCE_S) -> bool:
        return all(self.ring.rounds.wait(handle, timeout_s) for handle in self.handles)

    def clear(self) -> None:
        """What training does with a sum: clipping and zeroing change it in place."""
        for buffer in self.buffers.values():
            buffer.zero_()

    def sum(self) -> int:
        """The same in all places of all buffers."""
        found = {int(value) for buffer in self.buffers.values() for value in (buffer.min(), buffer.max())}
        assert len(found) == 1, found
        return found.pop()


@contextlib.contextmanager
def job(workers: int = 3) -> Iterator[list[Member]]:
    """Workers in a ring."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RingGroup, "abandon", lambda group: None)  # the process does not end
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        members = _start(workers)
        try:
            yield members
        finally:
            for member in members:
                member.ring.close()
                member.ring.rounds._sums = RingSums()  # what it has pushed refers to its ring
            wait_for(lambda: _taken_down(members), "all rings to be taken down")


def _start(workers: int) -> list[Member]:
    store, members = HashStore(), {}

    def start(rank: int) -> None:
        group = RingGroup(store, rank, workers, timedelta(seconds=PATIENCE_S))
        members[rank] = _member(rank, group)

    threads = [threading.Thread(target=start, args=(rank,)) for rank in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    return [members[rank] for rank in range(workers)]


def _member(rank: int, group: RingGroup | None) -> Member:
    store, address = open_store("127.0.0.1")
    return Member(rank, ElasticRing(rank, group, address), store)


def come(members: list[Member], rank: int) -> Member:
    """One more worker of the job, which is in no ring yet."""
    members.append(_member(rank, None))
    return members[-1]


def _taken_down(members: Sequence[Member]) -> bool:
    """Take down the rings in which nothing hangs. What hangs in another one fails when its neighbour is taken down."""
    for ring in (member.ring for member in members):
        ring.rounds.groups = {name: group for name, group in ring.rounds.groups.items() if not group.is_idle}
    return not any(member.ring.rounds.groups for member in members)


def change(generation: int, left: list[Member]) -> int:
    """All that are `left` go on. Returns the round they make."""
    first = max(member.ring.freeze().first_incomplete for member in left)
    addresses = {member.rank: member.ring.address for member in left}
    for member in left:
        member.ring.meet(addresses)
        member.ring.resume(generation, first, len(addresses), ())
    return first


def make(members: Sequence[Member], turn: int) -> set[int]:
    """All make a round. Returns what it is on each of them."""
    for member in members:
        member.push(turn)
    assert all(member.wait() for member in members)
    return {member.sum() for member in members}


def expect(members: Sequence[Member], newcomers: Sequence[Member] = ()) -> None:
    """These make the coming round, with those that come."""
    addresses = {member.rank: member.ring.address for member in [*members, *newcomers]}
    for member in members:
        member.ring.meet(addresses)
        member.ring.expect(len(addresses))
