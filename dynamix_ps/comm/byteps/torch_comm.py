"""BytePS for torch workers."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.comm.byteps.comm import BytePSComm
from dynamix_ps.comm.byteps.device_buffers import CudaCopier, DeviceBuffers
from dynamix_ps.comm.plane import is_elastic
from dynamix_ps.comm.torch_buffers import TorchBuffers, tensor_of, without_beginning

_CUDA_FUNCTION = "byteps_torch_push_pull_async_torch_cuda_FloatTensor"


class TorchBytePSComm(BytePSComm):
    """Sums GPU tensors too in builds with CUDA: by way of host memory (device_buffers.py).

    A worker that has several devices, each with a process, sums them through the stages of BytePS itself.
    """

    framework = "torch"

    def _load(self) -> Any:
        from byteps.torch import c_lib, ops

        self._c_lib = c_lib
        # the plugin has one name per tensor type for one and the same function
        self._push_pull_on_gpu = c_lib.byteps_torch_push_pull_async_torch_FloatTensor
        with_cuda = hasattr(c_lib, _CUDA_FUNCTION) and not is_elastic()  # what is on a GPU cannot be sent again
        self._tensors = TorchBuffers({"cpu", "cuda"} if with_cuda else {"cpu"})
        self._hosts: dict[str, Any] = {}  # host memory of buffers on a GPU
        self._on_device: DeviceBuffers | None = None
        if with_cuda and os.environ["BYTEPS_LOCAL_SIZE"] == "1":
            self._copier = CudaCopier()
            self._on_device = DeviceBuffers(self._copier, super().push_pull, super()._wait)
        return ops

    def _library(self) -> ctypes.CDLL:
        return ctypes.CDLL(self._c_lib.__file__)

    def _memory(self, name: str, buffer: Any) -> tuple[int, int, np.dtype[Any]]:
        return buffer.data_ptr(), buffer.nbytes, self._tensors.types[buffer.dtype]

    def declare(self, name: str, rounded: int = 0) -> None:
        super().declare(name, rounded)
        if "cuda" in self._tensors.devices and self._on_device is None:
            self._c_lib.byteps_torch_declare_tensor(name)

    def sums_on(self, device: str) -> bool:
        return device == "cpu" or self._on_device is None

    def travels_through(self, name: str, memory: NDArray[Any]) -> None:
        import torch

        self._hosts[name] = host = torch.from_numpy(memory)
        if told := self._copier.pin(host):
            self._degraded(f"copies between GPU and host are slow: {told}")

    def release(self, memory: NDArray[Any]) -> None:
        address = memory.ctypes.data
        if self._on_device is not None:
            self._hosts = {name: host for name, host in self._hosts.items() if host.data_ptr() != address}
            self._copier.unpin(address)  # though another buffer may have the name by now
        super().release(memory)

    def push_pull(self, name: str, buffer: Any, begin: int = 0) -> int:
        """Raises ValueError for a buffer BytePS cannot sum."""
        self._tensors.check(name, buffer)
        if buffer.device.type == "cpu":
            if self._on_device is not None:
                self._on_device.drain()
            return super().push_pull(name, buffer, begin)
        if self._on_device is not None:
            return self._on_device.push_pull(name, buffer, self._host_of(name, buffer), begin)
        if self._numbers[name] in self._rounded:
            self._degraded("wire: bf16 has no effect on gradients of several GPUs, which travel in their own type")
        sent = without_beginning(buffer, begin)
        handle = -1 - int(self._push_pull_on_gpu(sent, sent, False, name, 0, 0))  # the others count upwards from 0
        self._tensors.remember(handle, buffer, sent, begin)
        return handle

    def push_pull_into(self, name: str, buffer: Any, into: Any, begin: int = 0) -> int:
        """Raises ValueError for buffers that BytePS cannot sum, or that differ in size or type."""
        self._tensors.check(name, buffer)
        self._tensors.check(name, into)
        return super().push_pull_into(name, buffer, into, begin)

    def _host_of(self, name: str, buffer: Any) -> Any:
        if name not in self._hosts:
            import torch

            self._hosts[name] = torch.empty(buffer.shape, dtype=buffer.dtype, pin_memory=True)
        return self._hosts[name]

    def _wait(self, handle: int, timeout_s: float) -> bool:
        if handle >= 0:
            return super()._wait(handle, timeout_s)
        if self._on_device is not None:
            return self._on_device.wait(handle, timeout_s)
        if not self._c_lib.byteps_torch_wait(-1 - handle, timeout_s):
            return False
        self._tensors.deliver(handle)
        return True

    def _buffer(self, values: NDArray[Any]) -> Any:
        return tensor_of(values)

    def shutdown(self) -> None:
        """Waits until all workers shut down; servers and scheduler then end too."""
        if self._on_device is not None:
            self._on_device.close()
        super().shutdown()
