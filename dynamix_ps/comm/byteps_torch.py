"""BytePS for torch workers."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from dynamix_ps.comm.byteps import BytePSComm
from dynamix_ps.comm.torch_buffers import TorchBuffers

_CUDA_FUNCTION = "byteps_torch_push_pull_async_torch_cuda_FloatTensor"


class TorchBytePSComm(TorchBuffers, BytePSComm):
    """Sums GPU tensors too in builds with CUDA, through the stages of BytePS."""

    framework = "torch"

    def _load(self) -> Any:
        from byteps.torch import c_lib, ops

        self._c_lib = c_lib
        # the plugin has one name per tensor type for one and the same function
        self._push_pull_on_gpu = c_lib.byteps_torch_push_pull_async_torch_FloatTensor
        self._devices = {"cpu", "cuda"} if hasattr(c_lib, _CUDA_FUNCTION) else {"cpu"}
        self._learn_types()
        return ops

    def _library(self) -> ctypes.CDLL:
        return ctypes.CDLL(self._c_lib.__file__)

    def _memory(self, name: str, buffer: Any) -> tuple[int, int, np.dtype[Any]]:
        return buffer.data_ptr(), buffer.nbytes, self._types[buffer.dtype]

    def declare(self, name: str, rounded: int = 0) -> None:
        super().declare(name, rounded)
        if "cuda" in self._devices:
            self._c_lib.byteps_torch_declare_tensor(name)

    def push_pull(self, name: str, buffer: Any, begin: int = 0) -> int:
        """Raises ValueError for a buffer BytePS cannot sum."""
        self._check(name, buffer)
        if buffer.device.type == "cpu":
            return super().push_pull(name, buffer, begin)
        if self._numbers[name] in self._rounded:
            self._degraded("wire: bf16 has no effect on gradients on a GPU, which travel in their own type")
        sent = self._without_beginning(buffer, begin)
        handle = -1 - int(self._push_pull_on_gpu(sent, sent, False, name, 0, 0))  # the others count upwards from 0
        self._remember(handle, buffer, sent, begin)
        return handle

    def _wait(self, handle: int, timeout_s: float) -> bool:
        if handle >= 0:
            return super()._wait(handle, timeout_s)
        if not self._c_lib.byteps_torch_wait(-1 - handle, timeout_s):
            return False
        self._deliver(handle)
        return True
