"""What data planes for torch share: buffers are torch tensors."""

from __future__ import annotations

from abc import ABC
from collections.abc import Collection
from typing import Any

from numpy.typing import NDArray

from dynamix_ps.comm.base import Comm


class TorchBuffers(Comm, ABC):
    """Buffers are contiguous torch tensors: float16/32/64, uint8, int8/32/64, on one of `_devices`."""

    _devices: Collection[str]

    def _learn_types(self) -> None:
        import torch

        floats = torch.float16, torch.float32, torch.float64
        self._types = frozenset((*floats, torch.uint8, torch.int8, torch.int32, torch.int64))

    def _check(self, name: str, buffer: Any) -> None:
        """Raises ValueError for a tensor that cannot be summed."""
        if buffer.dtype not in self._types or buffer.device.type not in self._devices:
            raise ValueError(
                f"{name}: cannot sum {buffer.dtype} on {buffer.device.type}; "
                f"this build takes {sorted(map(str, self._types))} on {sorted(self._devices)}"
            )
        if not buffer.is_contiguous() or buffer.numel() == 0:
            raise ValueError(f"{name}: needs a contiguous buffer with elements, got shape {tuple(buffer.shape)}")

    def _buffer(self, values: NDArray[Any]) -> Any:
        import torch

        return torch.from_numpy(values)

    def _values(self, buffer: Any) -> NDArray[Any]:
        values: NDArray[Any] = buffer.numpy()
        return values
