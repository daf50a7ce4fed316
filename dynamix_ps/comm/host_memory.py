"""Buffers that the roles of one host share: what is in them need not be sent.

Every worker makes a segment for its buffer and tells the others where it is. Whoever is on the same host maps it.
Where all workers are on one host they sum in this memory themselves; servers on a worker's host read and write it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.comm.exchange import Exchange
from dynamix_ps.comm.segments import DATA_OFFSET_BYTES, Announcement, Segment, SegmentError
from dynamix_ps.config import variables

_STATE_OFFSET_BYTES = 64  # in the page before the data: what the workers that sum in a segment tell each other
_MAP_TIMEOUT_S = 30.0

Gather = Callable[[str, bytes], list[bytes]]  # bytes of all workers, in the order of ranks


@dataclass(slots=True)
class SharedBuffer:
    """One worker's part of an allocation."""

    segment: Segment
    number: int
    others: list[Segment] = field(default_factory=list)  # of the other workers on this host
    servers: list[int] = field(default_factory=list)  # those that map it


class HostMemory:
    """The shared buffers of one worker."""

    def __init__(
        self, exchange: Exchange, rank: int, servers: Sequence[int], gather: Gather, on_degraded: Callable[[str], None]
    ) -> None:
        """`servers`: those on this host. `on_degraded` is told, once, why roles of this host do not share memory."""
        self._exchange, self._rank, self._gather = exchange, rank, gather
        self._near_servers, self._on_degraded = servers, on_degraded
        self._wanted = os.environ.get(variables.SHARED_MEMORY) != "0"
        self._workers_sum = os.environ.get(variables.HOST_SUM) != "server"
        self._allocations = 0
        self._buffers: dict[int, SharedBuffer] = {}  # by address
        self._warned = False

    def allocate(self, size_bytes: int) -> NDArray[np.uint8] | None:
        """Zeroed memory; None: an ordinary buffer has to do. Collective: all workers call it with the same sizes."""
        self._allocations += 1
        number = self._allocations
        buffer = self._create(number, size_bytes)
        announcement = buffer.segment.announcement() if buffer else b""
        told = self._gather(f"segments.{number}.announced", announcement)
        by_rank = self._open(told, buffer)
        together = self._workers_sum and all(one is not None for one in by_rank)
        agreed = self._gather(f"segments.{number}.opened", b"1" if together else b"")
        if buffer is None:
            return None
        address = buffer.segment.address
        if all(agreed):
            places = [one.address for one in by_rank if one is not None]
            state = places[0] - DATA_OFFSET_BYTES + _STATE_OFFSET_BYTES
            self._exchange.share(state, places, self._rank, size_bytes)
        else:
            for one in buffer.others:
                one.close()
            buffer.others.clear()
            buffer.servers = [
                server
                for server in self._near_servers
                if self._exchange.announce(server, number, announcement, _MAP_TIMEOUT_S)
            ]
            for server in set(self._near_servers).difference(buffer.servers):
                self._warn(f"server {server} cannot open memory of worker {self._rank}")
            if not buffer.servers:  # nobody here shares it
                buffer.segment.close()
                return None
            self._exchange.refer(address, size_bytes, number, buffer.servers)
        self._buffers[address] = buffer
        return buffer.segment.data

    def _create(self, number: int, size_bytes: int) -> SharedBuffer | None:
        if not self._wanted:
            return None
        try:
            return SharedBuffer(Segment.create(size_bytes), number)
        except SegmentError as error:
            self._warn(error)
            return None

    def _open(self, told: list[bytes], mine: SharedBuffer | None) -> list[Segment | None]:
        """The segments of all workers; None for those of other hosts."""
        opened: list[Segment | None] = []
        for rank, announcement in enumerate(told):
            if mine is None or not announcement:
                opened.append(None)
            elif rank == self._rank:
                opened.append(mine.segment)
            elif not _on_one_host(mine.segment.announcement(), announcement):
                opened.append(None)
            else:
                try:
                    opened.append(other := Segment.open(announcement))
                    mine.others.append(other)
                except SegmentError as error:
                    self._warn(error)
                    opened.append(None)
        return opened

    def _warn(self, reason: object) -> None:
        if not self._warned:
            self._on_degraded(f"sums travel by TCP, though roles are on one host: {reason}")
        self._warned = True

    def release(self, address: int) -> None:
        """The buffer at `address` is in no sum any more. Its memory is freed when nobody has a view of it."""
        buffer = self._buffers.pop(address, None)
        if buffer is None:
            return
        self._exchange.unshare(address)
        for server in buffer.servers:
            self._exchange.forget(server, buffer.number)
        for other in buffer.others:
            other.close()


def _on_one_host(mine: bytes, other: bytes) -> bool:
    """A process in another network namespace counts as one of another host."""
    here, there = Announcement.unpack(mine), Announcement.unpack(other)
    return (here.boot, here.network_namespace) == (there.boot, there.network_namespace)
