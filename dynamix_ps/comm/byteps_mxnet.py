"""BytePS for MXNet workers.

A sum joins MXNet's own queue: it begins when all earlier operations on the buffer are done, and later operations on the
buffer wait for it.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dynamix_ps.numpy_names  # noqa: F401  (before mxnet)
from dynamix_ps.comm.byteps import BytePSComm

_TYPES = (np.float16, np.float32, np.float64, np.uint8, np.int8, np.int32, np.int64)


class MXNetBytePSComm(BytePSComm):
    """Buffers are dense NDArrays in host memory: float16/32/64, uint8, int8/32/64."""

    framework = "mxnet"

    def _load(self) -> Any:
        from byteps.mxnet import ops

        self._library = ops.MXNET_LIB_CTYPES
        self._library.byteps_mxnet_wait.argtypes = (ctypes.c_int, ctypes.c_double)
        return ops

    def declare(self, name: str) -> None:
        self._library.byteps_mxnet_declare_tensor(name.encode(), 0, None, None)

    def push_pull(self, name: str, buffer: Any) -> int:
        """Raises ValueError for a buffer BytePS cannot sum."""
        from mxnet.base import check_call

        if buffer.dtype not in _TYPES or buffer.context.device_type != "cpu" or buffer.stype != "default":
            raise ValueError(
                f"{name}: cannot sum {buffer.stype} {np.dtype(buffer.dtype).name} on {buffer.context}; "
                f"this build takes {sorted(one.__name__ for one in _TYPES)} on the CPU"
            )
        handle = ctypes.c_int()
        check_call(self._library.byteps_mxnet_sum_async(buffer.handle, name.encode(), ctypes.byref(handle)))
        return handle.value

    def _wait(self, handle: int, timeout_s: float) -> bool:
        state = self._library.byteps_mxnet_wait(handle, timeout_s)
        if state < 0:
            raise RuntimeError("BytePS could not sum" if state == -1 else f"there is no sum with handle {handle}")
        return bool(state)

    def _buffer(self, values: NDArray[Any]) -> Any:
        import mxnet as mx

        return mx.nd.array(values, dtype=values.dtype)

    def _values(self, buffer: Any) -> NDArray[Any]:
        values: NDArray[Any] = buffer.asnumpy()
        return values
