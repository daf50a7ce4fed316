"""Buffers that the roles of one host share, so that their values need not be sent.

Every worker makes a segment for its buffer and announces it. The roles of the same host map the segment. Workers of one
host sum in this memory themselves, and push once if there are other hosts. Servers on the host read and write there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.comm.byteps.exchange import Exchange
from dynamix_ps.comm.byteps.segments import DATA_OFFSET_BYTES, Announcement, Segment, SegmentError
from dynamix_ps.comm.elastic_job import is_elastic
from dynamix_ps.config import variables

_STATE_OFFSET_BYTES = 64  # in the page before the data: what the workers that sum in a segment tell each other
_MAP_TIMEOUT_S = 30.0

Gather = Callable[[str, bytes], list[bytes]]  # bytes of all workers, in the order of ranks


@dataclass(slots=True)
class SharedBuffer:
    """One worker's part of an allocation."""

    memory: NDArray[np.uint8]  # nobody else gets this address before it is released
    segment: Segment | None  # where it is, if somebody shares it
    number: int
    others: list[Segment]  # of the other workers on this host
    servers: list[int]  # those that map it


class HostMemory:
    """The shared buffers of one worker.

    Attributes:
        is_wanted: roles of this host are to share memory.
        workers_sum: this worker sums with others of its host.
    """

    def __init__(
        self, exchange: Exchange, rank: int, servers: Sequence[int], gather: Gather, on_degraded: Callable[[str], None]
    ) -> None:
        """`servers`: servers on this host. `on_degraded` gets, once, why roles of this host share no memory."""
        self._exchange, self._rank, self._gather = exchange, rank, gather
        self._near_servers, self._on_degraded = servers, on_degraded
        self.is_wanted = os.environ.get(variables.SHARED_MEMORY) != "0" and not is_elastic()
        self.workers_sum = self.is_wanted and os.environ.get(variables.HOST_SUM) != "server"
        self._allocations = 0
        self._buffers: dict[int, SharedBuffer] = {}  # by address
        self._warned = False

    def allocate(self, size_bytes: int) -> NDArray[np.uint8]:
        """Zeroed memory, shared if possible. Collective: all workers call it with the same sizes."""
        self._allocations += 1
        number = self._allocations
        segment = self._create(size_bytes)
        announcement = segment.announcement() if segment else b""
        opened = self._open(self._gather(f"segments.{number}.announced", announcement), segment)
        told = self._gather(f"segments.{number}.opened", np.array(sorted(opened), np.int32).tobytes())
        groups = groups_of([frozenset(np.frombuffer(ranks, np.int32).tolist()) for ranks in told])
        group = sorted(groups[self._rank])
        everybody = len(group) == len(groups)
        for rank in opened.keys() - set(group):
            opened.pop(rank).close()
        servers = []
        if segment is not None and not everybody and self._rank == group[0]:
            servers = self._announce(number, announcement)
            if len(group) == 1 and not servers:  # nobody shares it
                segment.close()
                segment = None
        memory = np.zeros(size_bytes, np.uint8) if segment is None else segment.data
        address = memory.ctypes.data
        if not everybody:
            self._exchange.refer(address, size_bytes, len(set(groups)), number, servers)
        if len(group) > 1:
            places = [address if rank == self._rank else opened[rank].address for rank in group]
            state = places[0] - DATA_OFFSET_BYTES + _STATE_OFFSET_BYTES
            self._exchange.share(state, places, group.index(self._rank), size_bytes, everybody)
        self._buffers[address] = SharedBuffer(memory, segment, number, list(opened.values()), servers)
        return memory

    def _create(self, size_bytes: int) -> Segment | None:
        if not self.is_wanted:
            return None
        try:
            return Segment.create(size_bytes)
        except SegmentError as error:
            self._warn(error)
            return None

    def _open(self, told: list[bytes], mine: Segment | None) -> dict[int, Segment]:
        """The segments of other workers with which this one sums, by rank."""
        opened: dict[int, Segment] = {}
        if mine is None or not self.workers_sum:
            return opened
        for rank, announcement in enumerate(told):
            if rank == self._rank or not announcement or not _on_one_host(mine.announcement(), announcement):
                continue
            try:
                opened[rank] = Segment.open(announcement)
            except SegmentError as error:
                self._warn(error)
        return opened

    def _announce(self, number: int, announcement: bytes) -> list[int]:
        """The servers of this host that map the segment from now on."""
        servers = [
            server
            for server in self._near_servers
            if self._exchange.announce(server, number, announcement, _MAP_TIMEOUT_S)
        ]
        for server in set(self._near_servers).difference(servers):
            self._warn(f"server {server} cannot open memory of worker {self._rank}")
        return servers

    def _warn(self, reason: object) -> None:
        if not self._warned:
            self._on_degraded(f"sums travel by TCP, though roles are on one host: {reason}")
        self._warned = True

    def release(self, address: int) -> None:
        """Release the buffer at `address`, which is in no sum. Its memory is freed when no view of it is left."""
        buffer = self._buffers.pop(address, None)
        if buffer is None:
            return
        self._exchange.unshare(address)
        for server in buffer.servers:
            self._exchange.forget(server, buffer.number)
        for other in buffer.others:
            other.close()


def groups_of(opened: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Groups of workers that sum among themselves. Pure.

    Args:
        opened: for every rank, the ranks of other workers whose segments it has opened.

    Returns:
        The group of every rank, itself included: the same on all ranks of a group. If one member has not opened the
        segments of all others, each member is alone.
    """
    claimed = [others | {rank} for rank, others in enumerate(opened)]
    return [
        group if all(claimed[member] == group for member in group) else frozenset({rank})
        for rank, group in enumerate(claimed)
    ]


def _on_one_host(mine: bytes, other: bytes) -> bool:
    """Whether two processes are on one host. A process in another network namespace counts as on another host."""
    here, there = Announcement.unpack(mine), Announcement.unpack(other)
    return (here.boot, here.network_namespace) == (there.boot, there.network_namespace)
