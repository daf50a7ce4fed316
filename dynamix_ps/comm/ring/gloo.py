"""The data plane without servers: ring all-reduce by torch.distributed, over gloo, and over NCCL for GPU tensors.

Workers find each other in torch's store at DMLC_PS_ROOT_URI:DMLC_PS_ROOT_PORT, where rank 0 listens.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from dynamix_ps.comm.base import Comm, interruptible
from dynamix_ps.comm.elastic_job import is_elastic, is_late
from dynamix_ps.comm.link_rate import bucket_floor_bytes, measure_pair
from dynamix_ps.comm.ring.codecs import CODECS
from dynamix_ps.comm.ring.compressed import CompressedSum, CompressedSums, saves_bytes
from dynamix_ps.comm.ring.elastic import ElasticRing
from dynamix_ps.comm.ring.group import RingGroup, is_complete
from dynamix_ps.comm.ring.stores import listen, open_store
from dynamix_ps.comm.torch_buffers import TorchBuffers, tensor_of, without_beginning
from dynamix_ps.config import variables
from dynamix_ps.config.role_environment import AUTO, FLOAT32, RoleSettings, read_role
from dynamix_ps.errors import PEER_GONE, EnvironmentNotReady, PeerLostError, TrainingError

_PATIENCE = timedelta(days=7)  # of the library; the hook notices a stall itself
_INTERFACE = "GLOO_SOCKET_IFNAME"
_NCCL_ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_NCCL_POLL_S = 1e-4


class GlooComm(Comm):
    """Sums GPU tensors too where torch has NCCL, but not in an elastic run.

    Attributes:
        elastic: brings the sums over the loss of a worker; None: this run ends with the loss.
    """

    name = "gloo"
    elastic: ElasticRing | None = None
    _compressed: CompressedSums | None = None  # None: everything travels as it is

    def init(self) -> None:
        """Join the other workers.

        Raises:
            EnvironmentNotReady: torch lacks gloo, or rank 0 cannot listen.
            UsageError: variables that a launcher sets are missing.
        """
        role = read_role({**os.environ, "DMLC_ROLE": "worker", "BYTEPS_FORCE_DISTRIBUTED": "1"})
        import torch
        import torch.distributed as dist

        if not dist.is_available() or not dist.is_gloo_available():
            raise EnvironmentNotReady("this torch has no gloo; install one that has it, or use comm: byteps")
        with_gpu = torch.cuda.is_available() and dist.is_nccl_available() and not is_elastic()
        self._tensors = TorchBuffers({"cpu", "cuda"} if with_gpu else {"cpu"})
        self._works: dict[int, Any] = {}
        self._on_gpu: set[int] = set()
        self._started = 0
        if (interface := _interface(os.environ.get("DMLC_NODE_HOST", ""))) is not None:
            os.environ.setdefault(_INTERFACE, interface)
        self.rank, self.size = role.worker_id, role.workers
        self.late = is_late()
        first = None if self.late else interruptible(lambda: self._first_ring(role, with_gpu))
        if is_elastic():
            self._meeting, address = open_store(_own_host(role))
            self.elastic = ElasticRing(self.rank, first, address)
        elif first is not None:
            self._ring = first
        if self.late:
            return
        hosts = [host.decode() for host in self.gather("hosts", _own_host(role).encode())]
        if len(set(hosts)) > 1:
            self._measure_link()
        wire = os.environ.get(variables.WIRE, FLOAT32)
        if self.size > 1 and wire != FLOAT32:
            self._compress(wire, hosts)

    def _measure_link(self) -> None:
        """What the links between hosts make of the size of buckets."""
        twice_rate, _ = measure_pair(self._sum_s)  # an echo sends its bytes there and back
        self.least_bucket_bytes = bucket_floor_bytes(twice_rate / 2)

    def _compress(self, wire: str, hosts: list[str]) -> None:
        """Let gradients travel in fewer bytes, where these are fewer."""
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # its stubs do not export it

        candidates = CODECS if wire == AUTO else (wire,)
        shorter = [name for name in candidates if saves_bytes(hosts, CODECS[name])]
        if not shorter:
            self._degraded(
                f"{' and '.join(candidates)} would bring more bytes over a link than float32, which is used: over a "
                f"ring, each of the {max(map(hosts.count, hosts))} workers on a host sends by itself; use fewer per "
                "host, or comm: byteps"
            )
            return

        scattering, gathering = (
            interruptible(partial(RingGroup, PrefixStore(phase, self._store), self.rank, self.size, _PATIENCE))
            for phase in ("scatter", "gather")
        )
        self._compressed = CompressedSums(wire, scattering, gathering, self._ring.sum)
        if wire == AUTO:
            self._compressed.wires = (FLOAT32, *shorter)
        self.least_bucket_bytes = max(self.least_bucket_bytes, 4 * self._compressed.least_values)

    def _sum_s(self, size_bytes: int) -> float:
        """Seconds of a sum of so many bytes by the slowest worker's clock: the same on all workers."""
        self.total("link", np.zeros(1))  # all begin together
        began_s, taken_s = time.perf_counter(), np.zeros(self.size)
        self.total("link", np.zeros(size_bytes, dtype=np.uint8))
        taken_s[self.rank] = time.perf_counter() - began_s
        return float(self.total("link", taken_s).max())

    def known(self) -> dict[str, Any]:
        return {"least_bucket_bytes": self.least_bucket_bytes}

    def adopt(self, known: Mapping[str, Any]) -> None:
        self.least_bucket_bytes = known["least_bucket_bytes"]
        super().adopt(known)

    def _first_ring(self, role: RoleSettings, with_gpu: bool) -> RingGroup:
        self._store = _store(role, self.first_size)  # where gloo and NCCL connect, also later
        with _set(_NCCL_ERRORS, "0") if with_gpu else nullcontext():  # `_wait` tells of errors; torch would abort
            return RingGroup(self._store, self.rank, self.first_size, _PATIENCE, with_gpu)

    def declare(self, name: str, rounded: int = 0, priority: int = 0) -> None:
        """A ring matches buffers by the order of the pushes, and sums in it, whatever the priorities."""
        if self._compressed is not None:
            self._compressed.declare(name, rounded)

    @property
    def wires(self) -> Sequence[str]:
        return () if self._compressed is None else self._compressed.wires

    def set_wire(self, name: str, wire: str) -> None:
        assert self._compressed is not None, "else there are no wires"
        self._compressed.set_wire(name, wire)

    def push_pull(self, name: str, buffer: Any, begin: int = 0) -> int:
        """Raises ValueError for a buffer that cannot be summed."""
        if self.elastic is not None and buffer.device.type != "cpu":
            raise TrainingError(
                f"{name} is on {buffer.device.type}, and elastic.min_workers with comm: gloo needs gradients on the "
                "CPU: NCCL cannot go on without a lost worker.\nNext: keep the model on the CPU, or remove "
                "elastic.min_workers"
            )
        self._tensors.check(name, buffer)
        if self.elastic is not None:
            return self.elastic.rounds.push_pull(name, buffer, begin)
        self._started += 1
        if self._compressed is not None and self._compressed.takes(name, buffer):
            self._works[self._started] = self._compressed.start(name, buffer, begin)
            return self._started
        sent = without_beginning(buffer, begin)
        self._works[self._started] = self._ring.sum(sent)
        self._tensors.remember(self._started, buffer, sent, begin)
        if buffer.is_cuda:
            self._on_gpu.add(self._started)
            if self._compressed is not None:
                self._compressed.wires = ()
                self._degraded("cluster.wire has no effect on gradients on a GPU: NCCL sums them in their own type")
        return self._started

    def _wait(self, handle: int, timeout_s: float) -> bool:
        """Raises PeerLostError when another worker is gone."""
        if self.elastic is not None:
            return self.elastic.rounds.wait(handle, timeout_s)
        work, on_gpu = self._works[handle], handle in self._on_gpu
        try:
            if not (_completes if on_gpu else is_complete)(work, timeout_s):
                return False
            if on_gpu:
                work.wait()  # raises NCCL's error; the current stream continues after the sum
        except RuntimeError as error:
            said = str(error).strip().splitlines()[-1:]
            raise PeerLostError(
                f"worker {self.rank} lost the ring ({''.join(said)}): {PEER_GONE}; see its log"
            ) from error
        del self._works[handle]
        self._on_gpu.discard(handle)
        if isinstance(work, CompressedSum):
            work.deliver()
        self._tensors.deliver(handle)
        return True

    def _buffer(self, values: NDArray[Any]) -> Any:
        return tensor_of(values)

    def version(self) -> str:
        import torch

        return f"torch {torch.__version__}"

    def shutdown(self) -> None:
        """Waits until all workers shut down, unless the run is elastic."""
        if self.elastic is not None:
            return self.elastic.close()
        if self._compressed is not None:
            self._compressed.close()
        return interruptible(self._ring.take_down)


def _completes(work: Any, timeout_s: float) -> bool:
    """Whether NCCL finishes or fails in time. A wait of NCCL with a limit would break the ring after the limit."""
    deadline = time.monotonic() + timeout_s
    while not work.is_completed():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_NCCL_POLL_S)
    return True


@contextmanager
def _set(name: str, value: str) -> Iterator[None]:
    """Within it an environment variable has this value, unless the user has set another."""
    if name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def _store(role: RoleSettings, workers: int) -> Any:
    """The store through which so many workers find each other.

    Rank 0 opens its port itself: torch would listen on all interfaces.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # its stubs do not export it

    place = (role.root_host, role.root_port, workers)
    if role.worker_id != 0:
        return TCPStore(*place, is_master=False, timeout=_PATIENCE)
    listener = listen(_own_host(role), role.root_port)
    return TCPStore(*place, is_master=True, timeout=_PATIENCE, master_listen_fd=listener.detach())


def _own_host(role: RoleSettings) -> str:
    return os.environ.get("DMLC_NODE_HOST") or role.root_host


def _interface(host: str) -> str | None:
    """The network interface with the address of `host`; empty if this machine has none, or no host is given."""
    try:
        wanted = {str(found[4][0]) for found in socket.getaddrinfo(host, None)} if host else set()
    except OSError:
        return None
    owners = (name for name, addresses in psutil.net_if_addrs().items() if {one.address for one in addresses} & wanted)
    return next(owners, None)
