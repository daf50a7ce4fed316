"""BytePS for MXNet workers."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dynamix_ps.numpy_names  # noqa: F401  (before mxnet)
from dynamix_ps.comm.byteps.comm import BytePSComm, FrameworkPlugin
from dynamix_ps.comm.byteps.exchange import TYPES


class MXNetPlugin(FrameworkPlugin):
    """Buffers are dense NDArrays in host memory: float16/32/64, uint8, int8/32/64.

    MXNet computes in the background: a sum begins when all earlier operations on the buffer are done.
    """

    framework = "mxnet"

    def load(self) -> ctypes.CDLL:
        from byteps.mxnet import ops

        self.ops = ops
        library: ctypes.CDLL = ops.MXNET_LIB_CTYPES
        return library

    def memory(self, name: str, buffer: Any) -> tuple[int, int, np.dtype[Any]]:
        from mxnet.base import _LIB, check_call

        dtype: np.dtype[Any] = np.dtype(buffer.dtype)
        if dtype not in TYPES or buffer.context.device_type != "cpu" or buffer.stype != "default":
            raise ValueError(
                f"{name}: cannot sum {buffer.stype} {dtype.name} on {buffer.context}; "
                f"this build takes {sorted(str(one) for one in TYPES)} on the CPU"
            )
        check_call(_LIB.MXNDArrayWaitToWrite(buffer.handle))
        address = ctypes.c_void_p()
        check_call(_LIB.MXNDArrayGetData(buffer.handle, ctypes.byref(address)))
        return address.value or 0, buffer.size * dtype.itemsize, dtype

    def buffer(self, values: NDArray[Any]) -> Any:
        import mxnet as mx

        return mx.nd.from_numpy(values, zero_copy=True)

    def values(self, buffer: Any) -> NDArray[Any]:
        values: NDArray[Any] = buffer.asnumpy()
        return values


mxnet_comm = partial(BytePSComm, MXNetPlugin)
