"""Sums of buffers on a GPU, by way of host memory: copied there, summed, and copied back.

    push_pull -> copy to the host begins -> (thread) copy complete, the sum begins -> wait -> copy back begins

Copies run beside the kernels of the backward pass. A thread waits for each copy, in the order of the pushes, so that
the training thread does not.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

from dynamix_ps.comm.torch_buffers import TorchBuffers, tensor_of, without_beginning

_WORTH_LOCKING_BYTES = 1 << 20

Ready = Callable[[], None]  # sleeps until a copy is complete
Start = Callable[[str, Any, int], int]  # (name, host buffer, begin): a sum in host memory
Wait = Callable[[int, float], bool]  # (handle, timeout_s): for this sum
Degraded = Callable[[str], None]


class Copier(Protocol):
    """Copies between a device and host memory."""

    def to_host(self, buffer: Any, host: Any) -> Ready:
        """Begin to copy `buffer`, after all kernels that were started so far."""

    def to_device(self, host: Any, buffer: Any) -> None:
        """Begin to copy; kernels that start later see the copy. `host` may be the target of the next `to_host`."""


@dataclass(slots=True)
class _Sum:
    name: str
    buffer: Any
    host: Any
    begin: int
    ready: Ready
    started: threading.Event = field(default_factory=threading.Event)
    handle: int = 0  # of the sum in host memory
    error: BaseException | None = None


class DeviceBuffers:
    """The sums of one worker whose buffers are on a GPU."""

    def __init__(self, copier: Copier, start: Start, wait: Wait) -> None:
        self._copier, self._start, self._wait = copier, start, wait
        self._sums: dict[int, _Sum] = {}
        self._number = 0
        self._waiting: queue.Queue[_Sum | None] = queue.Queue()
        self._thread: threading.Thread | None = None

    def push_pull(self, name: str, buffer: Any, host: Any, begin: int) -> int:
        """Start the sum of `buffer` by way of `host`, which has its size and type. Returns a handle below 0."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="device-buffers", daemon=True)
            self._thread.start()
        self._number -= 1
        ready = self._copier.to_host(buffer[begin:], host[begin:])
        self._sums[self._number] = one = _Sum(name, buffer, host, begin, ready)
        self._waiting.put(one)
        return self._number

    def wait(self, handle: int, timeout_s: float) -> bool:
        """Whether the sum is complete in time; the copy back has then begun. Raises the error of the sum."""
        one, deadline = self._sums[handle], time.monotonic() + timeout_s
        if not one.started.wait(timeout_s):
            return False
        if one.error is not None:
            raise one.error
        if not self._wait(one.handle, max(deadline - time.monotonic(), 0.0)):
            return False
        self._copier.to_device(one.host[one.begin :], one.buffer[one.begin :])
        del self._sums[handle]
        return True

    def drain(self) -> None:
        """Return when all sums have started: the next push comes after them, as on the other workers."""
        self._waiting.join()

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (one := self._waiting.get()) is not None:
            try:
                one.ready()
                one.handle = self._start(one.name, one.host, one.begin)
            except BaseException as error:
                one.error = error
            one.started.set()
            self._waiting.task_done()
        self._waiting.task_done()


class CudaCopier:
    """Copies on a stream of its own. Host memory that `pin` has seen is copied without the processor."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._streams: dict[Any, Any] = {}  # by device
        self._pinned: set[int] = set()

    def pin(self, host: Any) -> str:
        """Lock host memory in place, for as long as it is used. Returns why that failed; empty on success.

        Small memory that shares its pages with others is left alone.
        """
        address = host.data_ptr()
        if address % mmap.PAGESIZE and host.nbytes < _WORTH_LOCKING_BYTES:
            return ""
        status = int(self._torch.cuda.cudart().cudaHostRegister(address, host.nbytes, 0))  # type: ignore[no-untyped-call]
        if status != 0:
            with contextlib.suppress(RuntimeError):
                self._torch.zeros(1, device="cuda")  # the next kernel gets the driver's error
            return f"the GPU driver does not lock {host.nbytes} bytes of memory (cudaHostRegister returns {status})"
        self._pinned.add(address)
        return ""

    def unpin(self, address: int) -> None:
        """Undo `pin`; memory that is not locked is left alone."""
        if address in self._pinned:
            self._pinned.discard(address)
            self._torch.cuda.synchronize()
            self._torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]

    def to_host(self, buffer: Any, host: Any) -> Ready:
        cuda = self._torch.cuda
        if (stream := self._streams.get(buffer.device)) is None:
            stream = self._streams[buffer.device] = cuda.Stream(buffer.device)
        stream.wait_stream(cuda.current_stream(buffer.device))
        with cuda.stream(stream):
            host.copy_(buffer, non_blocking=True)
            done = cuda.Event(blocking=True)  # whoever waits for it sleeps
            done.record(stream)
        buffer.record_stream(stream)
        return done.synchronize  # type: ignore[no-any-return]

    def to_device(self, host: Any, buffer: Any) -> None:
        buffer.copy_(host, non_blocking=True)


class GpuSums:
    """The sums of a torch worker on GPUs: by way of host memory, or through the stages of BytePS itself.

    The latter is for a worker that has several devices, each with a process. Handles are below 0; others are in use for
    sums in host memory.
    """

    def __init__(self, c_lib: Any, tensors: TorchBuffers, start: Start, wait: Wait, on_degraded: Degraded) -> None:
        self._c_lib, self._tensors, self._on_degraded = c_lib, tensors, on_degraded
        self._rounded: set[str] = set()
        self._hosts: dict[str, Any] = {}  # host memory of each buffer
        self.by_host = os.environ["BYTEPS_LOCAL_SIZE"] == "1"
        if self.by_host:
            self._copier = CudaCopier()
            self._buffers = DeviceBuffers(self._copier, start, wait)

    def declare(self, name: str, rounded: bool) -> None:
        """As `Comm.declare`."""
        if not self.by_host:
            self._c_lib.byteps_torch_declare_tensor(name)
            self._rounded |= {name} if rounded else set()

    def travels_through(self, name: str, memory: NDArray[Any]) -> None:
        """As `Comm.travels_through`."""
        self._hosts[name] = host = tensor_of(memory)
        if told := self._copier.pin(host):
            self._on_degraded(f"copies between GPU and host are slow: {told}")

    def release(self, address: int) -> None:
        """As `Comm.release`."""
        if self.by_host:
            self._hosts = {name: host for name, host in self._hosts.items() if host.data_ptr() != address}
            self._copier.unpin(address)  # though another buffer may have the name by now

    def push_pull(self, name: str, buffer: Any, begin: int) -> int | None:
        """Start a sum. None: the buffer is in host memory, and all sums before it have started."""
        self._tensors.check(name, buffer)
        if buffer.device.type == "cpu":
            if self.by_host:
                self._buffers.drain()
            return None
        if self.by_host:
            if name not in self._hosts:
                import torch

                self._hosts[name] = torch.empty(buffer.shape, dtype=buffer.dtype, pin_memory=True)
            return self._buffers.push_pull(name, buffer, self._hosts[name], begin)
        if name in self._rounded:
            self._on_degraded("cluster.wire has no effect on gradients of several GPUs, which travel in their own type")
        sent = without_beginning(buffer, begin)
        # the plugin has one name per tensor type for one and the same function
        handle = -1 - int(self._c_lib.byteps_torch_push_pull_async_torch_FloatTensor(sent, sent, False, name, 0, 0))
        self._tensors.remember(handle, buffer, sent, begin)
        return handle

    def wait(self, handle: int, timeout_s: float) -> bool:
        """As `Comm.wait`."""
        if self.by_host:
            return self._buffers.wait(handle, timeout_s)
        if not self._c_lib.byteps_torch_wait(-1 - handle, timeout_s):
            return False
        self._tensors.deliver(handle)
        return True

    def close(self) -> None:
        """End the thread."""
        if self.by_host:
            self._buffers.close()
