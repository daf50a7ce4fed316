"""BytePS for torch workers."""

from __future__ import annotations

from typing import Any

from dynamix_ps.comm.byteps import BytePSComm
from dynamix_ps.comm.torch_buffers import TorchBuffers

_CUDA_FUNCTION = "byteps_torch_push_pull_async_torch_cuda_FloatTensor"


class TorchBytePSComm(TorchBuffers, BytePSComm):
    """Sums GPU tensors too in builds with CUDA."""

    framework = "torch"

    def _load(self) -> Any:
        from byteps.torch import c_lib, ops

        self._declare = c_lib.byteps_torch_declare_tensor
        self._wait_in_c = c_lib.byteps_torch_wait
        # the plugin has one name per tensor type for one and the same function
        self._push_pull = c_lib.byteps_torch_push_pull_async_torch_FloatTensor
        self._devices = {"cpu", "cuda"} if hasattr(c_lib, _CUDA_FUNCTION) else {"cpu"}
        self._learn_types()
        return ops

    def declare(self, name: str) -> None:
        self._declare(name)

    def push_pull(self, name: str, buffer: Any) -> int:
        """Raises ValueError for a buffer BytePS cannot sum."""
        self._check(name, buffer)
        return int(self._push_pull(buffer, buffer, False, name, 0, 0))

    def _wait(self, handle: int, timeout_s: float) -> bool:
        return bool(self._wait_in_c(handle, timeout_s))
