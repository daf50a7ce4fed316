"""What data planes for torch share: buffers are torch tensors."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray


class TorchBuffers:
    """Buffers are contiguous torch tensors: float16/32/64, uint8, int8/32/64, on one of `devices`."""

    def __init__(self, devices: Collection[str]) -> None:
        import torch

        names = "float16", "float32", "float64", "uint8", "int8", "int32", "int64"
        self.devices = devices
        self.types = {getattr(torch, name): np.dtype(name) for name in names}
        self._partly: dict[int, tuple[Any, Any, int]] = {}  # by handle: sums of which the beginning is not wanted

    def check(self, name: str, buffer: Any) -> None:
        """Raises ValueError for a tensor that cannot be summed."""
        if buffer.dtype not in self.types or buffer.device.type not in self.devices:
            raise ValueError(
                f"{name}: cannot sum {buffer.dtype} on {buffer.device.type}; "
                f"this build takes {sorted(map(str, self.types))} on {sorted(self.devices)}"
            )
        if not buffer.is_contiguous() or buffer.numel() == 0:
            raise ValueError(f"{name}: needs a contiguous buffer with elements, got shape {tuple(buffer.shape)}")

    def remember(self, handle: int, buffer: Any, sent: Any, begin: int) -> None:
        """The sum with this handle is made of `sent`, from `without_beginning`."""
        if begin:
            self._partly[handle] = buffer, sent, begin

    def deliver(self, handle: int) -> None:
        """Copy the complete sum with this handle into its buffer, where a copy took part."""
        if handle in self._partly:
            buffer, sent, begin = self._partly.pop(handle)
            buffer[begin:] = sent[begin:]


def without_beginning(buffer: Any, begin: int) -> Any:
    """`buffer` itself, or a copy with zeros before `begin`."""
    if not begin:
        return buffer
    sent = buffer.new_zeros(buffer.shape)
    sent[begin:] = buffer[begin:]
    return sent


def tensor_of(values: NDArray[Any]) -> Any:
    """A tensor in the memory of an array."""
    import torch

    return torch.from_numpy(values)
