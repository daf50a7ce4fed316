"""Buffers on a GPU, here arrays in their place: copied to host memory, summed there, copied back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dynamix_ps.comm.byteps.device_buffers import DeviceBuffers, GpuSums
from dynamix_ps.comm.torch_buffers import TorchBuffers

LIMIT_S = 30.0


class Copies:
    """A copy to the host is complete when the test lets it."""

    def __init__(self) -> None:
        self.complete: list[threading.Event] = []
        self.error: Exception | None = None

    def to_host(self, buffer: Any, host: Any) -> Callable[[], None]:
        done = threading.Event()
        self.complete.append(done)

        def ready() -> None:
            assert done.wait(LIMIT_S)
            if self.error is not None:
                raise self.error
            host[:] = buffer

        return ready

    def to_device(self, host: Any, buffer: Any) -> None:
        buffer[:] = host


class Sums:
    """Doubles what is pushed, as two equal workers would."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.answers = True

    def start(self, name: str, host: Any, begin: int) -> int:
        host[begin:] *= 2
        self.names.append(name)
        return len(self.names) - 1

    def wait(self, handle: int, timeout_s: float) -> bool:
        return self.answers


@pytest.fixture
def copies() -> Copies:
    return Copies()


@pytest.fixture
def sums() -> Sums:
    return Sums()


@pytest.fixture
def device(copies: Copies, sums: Sums) -> Any:
    buffers = DeviceBuffers(copies, sums.start, sums.wait)
    yield buffers
    for one in copies.complete:
        one.set()
    buffers.close()


def test_sums_start_in_the_order_of_the_pushes(device: DeviceBuffers, copies: Copies, sums: Sums) -> None:
    first, second = np.arange(3.0), np.arange(4.0)
    handles = [device.push_pull("a", first, np.zeros(3), 0), device.push_pull("b", second, np.zeros(4), 0)]
    copies.complete[1].set()
    assert not device.wait(handles[1], 0.01) and not sums.names
    copies.complete[0].set()
    assert device.wait(handles[0], LIMIT_S) and device.wait(handles[1], LIMIT_S)
    assert sums.names == ["a", "b"]
    assert first.tolist() == [0, 2, 4] and second.tolist() == [0, 2, 4, 6]


def test_the_beginning_of_a_buffer_stays(device: DeviceBuffers, copies: Copies) -> None:
    buffer, host = np.arange(4.0), np.full(4, 9.0)
    handle = device.push_pull("a", buffer, host, 2)
    copies.complete[0].set()
    assert device.wait(handle, LIMIT_S)
    assert buffer.tolist() == [0, 1, 4, 6] and host[:2].tolist() == [9, 9]


def test_a_wait_ends_at_its_limit_and_the_sum_still_arrives(device: DeviceBuffers, copies: Copies, sums: Sums) -> None:
    buffer = np.ones(2)
    handle = device.push_pull("a", buffer, np.zeros(2), 0)
    copies.complete[0].set()
    device.drain()
    sums.answers = False
    assert not device.wait(handle, 0.01) and buffer.tolist() == [1, 1]
    sums.answers = True
    assert device.wait(handle, LIMIT_S) and buffer.tolist() == [2, 2]


def test_what_goes_wrong_in_a_copy_is_raised_where_the_sum_is_waited_for(device: DeviceBuffers, copies: Copies) -> None:
    copies.error = RuntimeError("CUDA error: an illegal memory access was encountered")
    handle = device.push_pull("a", np.ones(2), np.zeros(2), 0)
    copies.complete[0].set()
    with pytest.raises(RuntimeError, match="illegal memory access"):
        device.wait(handle, LIMIT_S)


def test_drain_returns_when_all_sums_have_started(device: DeviceBuffers, copies: Copies, sums: Sums) -> None:
    for name in "abc":
        device.push_pull(name, np.ones(2), np.zeros(2), 0)
    for one in reversed(copies.complete):
        one.set()
    device.drain()
    assert sums.names == ["a", "b", "c"]


class Library:
    """The plugin's functions for GPUs; every sum is complete at once."""

    def __init__(self) -> None:
        self.declared: list[str] = []
        self.pushed: list[Any] = []

    def byteps_torch_declare_tensor(self, name: str) -> None:
        self.declared.append(name)

    def byteps_torch_push_pull_async_torch_FloatTensor(self, sent: Any, into: Any, average: bool, *_: Any) -> int:
        assert sent is into and not average
        self.pushed.append(sent)
        return len(self.pushed) - 1

    def byteps_torch_wait(self, handle: int, timeout_s: float) -> bool:
        return handle < len(self.pushed)


def test_a_worker_of_several_gpus_sums_by_the_stages_of_byteps(monkeypatch: pytest.MonkeyPatch, sums: Sums) -> None:
    """A tensor without values is in place of one on a GPU."""
    monkeypatch.setenv("BYTEPS_LOCAL_SIZE", "2")
    library, told = Library(), list[str]()
    gpu = GpuSums(library, TorchBuffers({"cpu", "meta"}), sums.start, sums.wait, told.append)
    gpu.declare("gradients", rounded=True)
    assert gpu.push_pull("other", torch.zeros(2), 0) is None and not gpu.by_host
    buffer = torch.zeros(4, device="meta")
    assert [gpu.push_pull("gradients", buffer, begin) for begin in (0, 2)] == [-1, -2]
    assert gpu.wait(-1, 0.0) and gpu.wait(-2, 0.0) and not gpu.wait(-3, 0.0)
    assert library.pushed[0] is buffer and library.pushed[1] is not buffer, "its beginning is in no sum"
    assert library.declared == ["gradients"] and "wire has no effect" in told[0] and not sums.names
