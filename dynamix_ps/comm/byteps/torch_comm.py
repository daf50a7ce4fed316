"""BytePS for torch workers."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.comm.byteps.comm import BytePSComm, FrameworkPlugin
from dynamix_ps.comm.byteps.device_buffers import Degraded, GpuSums, Start, Wait
from dynamix_ps.comm.elastic_job import is_elastic
from dynamix_ps.comm.torch_buffers import TorchBuffers, tensor_of

_CUDA_FUNCTION = "byteps_torch_push_pull_async_torch_cuda_FloatTensor"


class TorchPlugin(FrameworkPlugin):
    """Sums GPU tensors too in builds with CUDA."""

    framework = "torch"

    def load(self) -> ctypes.CDLL:
        from byteps.torch import c_lib, ops

        self._c_lib, self.ops = c_lib, ops
        with_cuda = hasattr(c_lib, _CUDA_FUNCTION) and not is_elastic()  # what is on a GPU cannot be sent again
        self._tensors = TorchBuffers({"cpu", "cuda"} if with_cuda else {"cpu"})
        return ctypes.CDLL(c_lib.__file__)

    def memory(self, name: str, buffer: Any) -> tuple[int, int, np.dtype[Any]]:
        self._tensors.check(name, buffer)
        return buffer.data_ptr(), buffer.nbytes, self._tensors.types[buffer.dtype]

    def gpu_sums(self, start: Start, wait: Wait, on_degraded: Degraded) -> GpuSums | None:
        if "cuda" not in self._tensors.devices:
            return None
        return GpuSums(self._c_lib, self._tensors, start, wait, on_degraded)

    def buffer(self, values: NDArray[Any]) -> Any:
        return tensor_of(values)


torch_comm = partial(BytePSComm, TorchPlugin)
