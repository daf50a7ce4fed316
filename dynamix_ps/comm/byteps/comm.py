"""The data plane over BytePS: workers push every buffer to the servers and pull the sum into it.

A buffer travels in pieces, which are spread over the servers (placement.py). Memory that the roles of one host share is
not sent (host_memory.py).
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.byteps_build.install import lack_of_byteps
from dynamix_ps.comm.base import PATIENCE_S, Comm, interruptible
from dynamix_ps.comm.byteps.device_buffers import Degraded, GpuSums, Start, Wait
from dynamix_ps.comm.byteps.elastic import ElasticWorker, peer_failure
from dynamix_ps.comm.byteps.exchange import SHORTER, TYPES, WIRES, Exchange
from dynamix_ps.comm.byteps.host_memory import HostMemory
from dynamix_ps.comm.byteps.links import measure_links
from dynamix_ps.comm.byteps.placement import piece_bytes, server_shares, servers_in_turn, window_bytes
from dynamix_ps.comm.elastic_job import is_elastic, is_late
from dynamix_ps.comm.followed_sums import SumTaker
from dynamix_ps.comm.link_rate import bucket_floor_bytes
from dynamix_ps.config import variables
from dynamix_ps.config.role_environment import AUTO, FLOAT32
from dynamix_ps.errors import PEER_GONE, EnvironmentNotReady, PeerLostError, StallError, TrainingError

_MEET_S, _ECHO_S = 60.0, 1.0
_REQUIRED = (
    "DMLC_ROLE",
    "DMLC_NUM_WORKER",
    "DMLC_NUM_SERVER",
    "DMLC_PS_ROOT_URI",
    "DMLC_PS_ROOT_PORT",
    "DMLC_WORKER_ID",
    "BYTEPS_LOCAL_RANK",
    "BYTEPS_LOCAL_SIZE",
)


class FrameworkPlugin(ABC):
    """BytePS's plugin for one framework, and the buffers of that framework.

    Attributes:
        ops: the module that has BytePS's init, rank, size and shutdown, once it is loaded.
    """

    framework: ClassVar[str]
    ops: Any

    @abstractmethod
    def load(self) -> ctypes.CDLL:
        """Import the plugin. Returns its library."""

    @abstractmethod
    def memory(self, name: str, buffer: Any) -> tuple[int, int, np.dtype[Any]]:
        """Address, bytes and type of a buffer, once no operation works on it. Raises ValueError for other objects."""

    def gpu_sums(self, start: Start, wait: Wait, on_degraded: Degraded) -> GpuSums | None:
        """None: this build sums in host memory alone, by `start` and `wait`."""
        return None

    @abstractmethod
    def buffer(self, values: NDArray[Any]) -> Any:
        """As `Comm._buffer`."""

    def values(self, buffer: Any) -> NDArray[Any]:
        """As `Comm._values`."""
        return np.asarray(buffer)


class _InFlight(NamedTuple):
    """A sum that is not complete."""

    name: str
    buffer: Any
    into: Any  # where the sum goes
    skip_bytes: int  # at the beginning, which are in no sum


@dataclass(slots=True)
class Declared:
    """A buffer."""

    rounded: int = 0  # values at the beginning that may travel in fewer bytes
    wire: str = FLOAT32  # and how they do
    priority: int = 0
    placed_bytes: int = 0  # in its last sum; 0: it is to be placed
    in_flight: _InFlight | None = None  # so that its memory stays until its sum is complete


class Spread(NamedTuple):
    """How pieces travel, the same on all workers."""

    shares: NDArray[np.float64]  # (S,) part of the bytes that each server sums
    rate_bytes_per_s: float = 5e9  # of a typical link; here within a host
    window_bytes: int | None = None  # in flight to each server; None: what the library begins with
    wires: Sequence[str] = ()  # as in Comm


class BytePSComm(Comm):
    """Sums buffers of the framework of its plugin.

    Attributes:
        elastic: brings the sums over a lost worker or server; None: this run ends with the loss.
    """

    name = "byteps"
    first_needed_first = True
    elastic: ElasticWorker | None
    _gpu: GpuSums | None = None
    _followed: SumTaker | None = None  # this worker is in no sum yet, and takes those of the others

    def __init__(self, plugin: Callable[[], FrameworkPlugin]) -> None:
        self._plugin = plugin()

    def init(self) -> None:
        """Join scheduler, servers and the other workers.

        Raises EnvironmentNotReady when BytePS is not installed, cannot be loaded, this project has not built it for
        this framework, or variables that a launcher sets are missing.
        """
        _check_environment(self._plugin.framework)
        try:
            library, ops = self._plugin.load(), self._plugin.ops
        except (ImportError, OSError) as error:
            raise EnvironmentNotReady(f"BytePS cannot be loaded ({error}); run: dynamix build-byteps") from error
        interruptible(lambda: ops.init(lazy=False))
        self.rank, self.size = ops.rank(), ops.size()
        self._exchange = Exchange(library, is_elastic())
        self._gpu = self._plugin.gpu_sums(self._start, self._wait, self._degraded)
        self.elastic = ElasticWorker(self._exchange, lambda: self._spread.shares) if is_elastic() else None
        self.sends_again = self.elastic is not None
        if self.elastic is not None:
            self.elastic.expect(self.first_size)
        self._numbers: dict[str, int] = {}
        self._declared: dict[int, Declared] = {}  # by number
        server_hosts, own_host = self._exchange.hosts()
        self._spread = Spread(np.full(len(server_hosts), 1 / len(server_hosts)))
        self._exchange.spread(servers_in_turn(self._spread.shares))
        near = [server for server, host in enumerate(server_hosts) if host == own_host]
        self._host_memory = HostMemory(self._exchange, self.rank, near, self.gather, self._degraded)
        self.late = is_late()
        if self.late:
            self._meet([server for server, host in enumerate(server_hosts) if host])
            return
        has_wire = self._place_by_links(server_hosts, own_host) or not self._host_memory.is_wanted
        self.least_bucket_bytes = bucket_floor_bytes(self._spread.rate_bytes_per_s)
        if os.environ.get(variables.WIRE) == AUTO and self.size > 1:
            has_wire &= self._gpu is None or self._gpu.by_host  # else gradients travel by shared memory, or NCCL
            if all(self.gather("wires", b"yes" if has_wire else b"")):
                self._spread = self._spread._replace(wires=(FLOAT32, *WIRES))

    @property
    def wires(self) -> Sequence[str]:
        return self._spread.wires

    def _meet(self, servers: list[int]) -> None:
        """Wait until these servers answer this joiner; the scheduler tells them of it."""
        deadline_s = time.monotonic() + _MEET_S
        for server in servers:
            while self._exchange.echo_s(server, 1, _ECHO_S) < 0:
                if time.monotonic() > deadline_s:
                    raise StallError(f"server {server} has not answered this worker, which came late, in {_MEET_S:g} s")

    def known(self) -> dict[str, Any]:
        rounded = [(number, (one.rounded, one.wire)) for number, one in self._declared.items() if one.rounded]
        shares = self._spread.shares.tolist()
        return {"numbers": self._numbers, "rounded": rounded, **self._spread._asdict(), "shares": shares}

    def adopt(self, known: Mapping[str, Any]) -> None:
        self._numbers, rounded = dict(known["numbers"]), dict(known["rounded"])
        self._declared = {number: Declared(*rounded.get(number, ())) for number in self._numbers.values()}
        # `elastic.enter` spreads by these shares, over the servers that are left
        kept = {name: known[name] for name in Spread._fields}
        self._spread = Spread(**{**kept, "shares": np.array(known["shares"])})
        if self._spread.window_bytes is not None:
            self._exchange.limit_in_flight(self._spread.window_bytes)
        self.least_bucket_bytes = bucket_floor_bytes(self._spread.rate_bytes_per_s)
        self.late = False

    def follow(self, sums: SumTaker | None) -> None:
        self._followed = sums

    def _place_by_links(self, server_hosts: list[str], own_host: str) -> bool:
        """Give each server a share of the bytes by the rate of its host's link, the same share on all workers.

        Returns whether there are several hosts.
        """
        worker_hosts = [host.decode() for host in self.gather("hosts", own_host.encode())]
        if len({*worker_hosts, *server_hosts}) == 1:
            return False
        self.declare("links")
        links = measure_links(self.rank, worker_hosts, server_hosts, self._echo_s, partial(self.total, "links"))
        shares = server_shares(
            worker_hosts, server_hosts, links.rate_bytes_per_s, one_push_per_host=self._host_memory.workers_sum
        )
        typical_rate = float(np.median(list(links.rate_bytes_per_s.values())))
        # rank 0's, as floats may differ in the last bit between processors
        found = np.array([typical_rate, links.round_trip_s, *shares])
        rate_bytes_per_s, round_trip_s, *placed = np.frombuffer(self.broadcast("shares", found.tobytes())).tolist()
        window = window_bytes(rate_bytes_per_s, round_trip_s)
        self._spread = Spread(np.array(placed), rate_bytes_per_s, window)
        self._exchange.spread(servers_in_turn(self._spread.shares))
        self._exchange.limit_in_flight(window)
        return True

    def _echo_s(self, server: int, size_bytes: int) -> float:
        """Seconds that so many bytes take to a server and back. Raises StallError when the server does not answer."""
        taken_s = self._exchange.echo_s(server, size_bytes, PATIENCE_S)
        if taken_s < 0:
            raise StallError(f"server {server} has not sent {size_bytes} bytes back within {PATIENCE_S:.0f} s")
        return taken_s

    def declare(self, name: str, rounded: int = 0, priority: int = 0) -> None:
        number = self._numbers.setdefault(name, len(self._numbers))
        one = self._declared.setdefault(number, Declared())
        if one.priority != priority:
            one.priority, one.placed_bytes = priority, 0
        wire = os.environ.get(variables.WIRE, FLOAT32)
        if rounded and wire != FLOAT32:
            one.rounded = rounded
            one.wire = wire if wire in WIRES else one.wire
        if self._gpu is not None:
            self._gpu.declare(name, one.rounded > 0)

    def set_wire(self, name: str, wire: str) -> None:
        """Servers may keep what their rounding has left out, for the next sum that is rounded."""
        one = self._declared[self._numbers[name]]
        if one.wire != wire:
            one.wire, one.placed_bytes = wire, 0

    def allocate(self, values: int, dtype: str) -> NDArray[Any]:
        if self.elastic:
            return super().allocate(values, dtype)
        return self._host_memory.allocate(values * np.dtype(dtype).itemsize).view(dtype)

    def release(self, memory: NDArray[Any]) -> None:
        if self._gpu is not None:
            self._gpu.release(memory.ctypes.data)
        self._host_memory.release(memory.ctypes.data)

    def sums_on(self, device: str) -> bool:
        return device == "cpu" or self._gpu is None or not self._gpu.by_host

    def travels_through(self, name: str, memory: NDArray[Any]) -> None:
        assert self._gpu is not None, "only there"
        self._gpu.travels_through(name, memory)

    def push_pull(self, name: str, buffer: Any, begin: int = 0) -> int:
        """Raises ValueError for a buffer that BytePS cannot sum, TrainingError if this worker has left the others."""
        if self._gpu is not None and (handle := self._gpu.push_pull(name, buffer, begin)) is not None:
            return handle
        return self._start(name, buffer, begin)

    def _start(self, name: str, buffer: Any, begin: int) -> int:
        """A sum in host memory."""
        if self._followed is not None:
            return self._await_told(name, buffer, begin)
        number, address, size_bytes, dtype = self._prepared(name, buffer)
        self._declared[number].in_flight = _InFlight(name, buffer, buffer, begin * dtype.itemsize)
        self._exchange.push_pull(number, address, size_bytes, TYPES[dtype], begin * dtype.itemsize)
        return number

    def push_pull_into(self, name: str, buffer: Any, into: Any, begin: int = 0) -> int:
        """Raises ValueError for buffers that BytePS cannot sum, or that differ in size or type."""
        if self._followed is not None:
            return self._await_told(name, into, begin)
        number, address, size_bytes, dtype = self._prepared(name, buffer)
        address_of_sum, *like = self._plugin.memory(name, into)
        if like != [size_bytes, dtype]:
            raise ValueError(
                f"the sum of {name!r} is to go to {like[0]} bytes of {like[1]}, not {size_bytes} of {dtype}"
            )
        skip_bytes = begin * dtype.itemsize
        self._declared[number].in_flight = _InFlight(name, buffer, into, skip_bytes)
        self._exchange.push_pull_into(number, address, address_of_sum, size_bytes, TYPES[dtype], skip_bytes)
        return number

    def _await_told(self, name: str, into: Any, begin: int) -> int:
        """Take the sum of the others under this name into `into`."""
        number, dtype = self._numbers[name], self._plugin.memory(name, into)[2]
        self._declared[number].in_flight = _InFlight(name, into, into, begin * dtype.itemsize)
        return number

    def _values_of(self, one: _InFlight) -> memoryview:
        """The memory of the sum."""
        address, size_bytes, _ = self._plugin.memory(one.name, one.into)
        whole = (ctypes.c_uint8 * size_bytes).from_address(address)
        return memoryview(whole).cast("B")[one.skip_bytes :]

    def _prepared(self, name: str, buffer: Any) -> tuple[int, int, int, np.dtype[Any]]:
        """Number, address, bytes and type of a buffer that has its place on the servers."""
        if self.left:
            raise TrainingError(
                f"this worker has left the job, so it can take part in {name!r} no more; end its script"
            )
        number = self._numbers[name]
        address, size_bytes, dtype = self._plugin.memory(name, buffer)
        one = self._declared[number]
        if one.placed_bytes != size_bytes:
            self._place(number, one, size_bytes, dtype)
        return number, address, size_bytes, dtype

    def _place(self, number: int, one: Declared, size_bytes: int, dtype: np.dtype[Any]) -> None:
        servers_in_use = int(np.count_nonzero(self._spread.shares))
        rate_bytes_per_s = self._spread.rate_bytes_per_s * SHORTER.get(one.wire, 1)  # of the buffer's bytes
        size = piece_bytes(size_bytes, rate_bytes_per_s, servers_in_use)
        self._exchange.place(number, size, -(-size_bytes // size), one.priority)
        if one.rounded and dtype == np.float32:
            self._exchange.encode(number, one.rounded * dtype.itemsize, one.wire)
        one.placed_bytes = size_bytes

    def _wait(self, handle: int, timeout_s: float) -> bool:
        """Raises ValueError if there is no sum with this handle, PeerLostError if a server or the scheduler is lost."""
        if self.elastic is None:
            self._check_servers()
        if handle < 0 and self._gpu is not None:
            return self._gpu.wait(handle, timeout_s)
        one = self._declared.get(handle)
        if one is None or (not one.placed_bytes and one.in_flight is None):
            raise ValueError(f"there is no sum with handle {handle}")
        into = one.in_flight
        if self._followed is not None and into is not None:
            complete = self._followed.sum(handle, self._values_of(into), timeout_s)
        else:
            complete = self._exchange.wait(handle, timeout_s)
            if complete and into is not None and self.on_sum is not None:
                self.on_sum(handle, self._values_of(into))
        if complete:
            one.in_flight = None
        return complete

    def _check_servers(self) -> None:
        """A worker has connections to servers and scheduler. Sums within a host may need neither."""
        if (found := self._exchange.first_loss()) is not None:
            lost = peer_failure(*found)
            raise PeerLostError(
                f"worker {self.rank} lost {lost.kind} {lost.rank}: {PEER_GONE}, or this {lost.kind} is; see their logs"
            )

    def version(self) -> str:
        return importlib.metadata.version("byteps")

    def shutdown(self) -> None:
        """Waits until all workers shut down; servers and scheduler then end too."""
        if self._gpu is not None:
            self._gpu.close()
        interruptible(self._plugin.ops.shutdown)

    def _buffer(self, values: NDArray[Any]) -> Any:
        return self._plugin.buffer(values)

    def _values(self, buffer: Any) -> NDArray[Any]:
        return self._plugin.values(buffer)


def _check_environment(framework: str) -> None:
    if lack := lack_of_byteps(framework):
        raise EnvironmentNotReady(f"{lack}.\nNext: dynamix build-byteps")
    missing = [name for name in _REQUIRED if not os.environ.get(name)]
    if missing:
        raise EnvironmentNotReady(
            f"this process is not a BytePS worker: {', '.join(missing)} not set.\n"
            "Next: start it with `dynamix launch` or `dynamix-bpslaunch`, or use comm: local for one process"
        )
    if os.environ["DMLC_NUM_SERVER"] == "0":
        raise EnvironmentNotReady(
            "DMLC_NUM_SERVER is 0, and BytePS needs a server.\nNext: start one, or use comm: gloo, which needs none"
        )
    if os.environ["DMLC_ROLE"] != "worker":
        raise EnvironmentNotReady(
            f"DMLC_ROLE is {os.environ['DMLC_ROLE']!r}, expected 'worker': the hooks belong in the training script.\n"
            "Next: start servers and scheduler with `dynamix-bpslaunch` alone"
        )
