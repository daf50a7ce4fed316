"""A state of torch on its way to another worker: its structure, and then the bytes of its tensors.

The bytes go from the memory of each tensor to that of a new one at the other end. torch.save would also compute a
checksum of them, which TCP does already, and torch.load needs all of them in memory before it makes the first tensor.

    8 bytes: length of the structure; the structure, by torch.save, with a tensor without data for every tensor;
    the bytes of these tensors, in the order in which they are met in the structure, each of them once
"""

from __future__ import annotations

import copy
import io
import struct
from collections.abc import Callable
from typing import Any, BinaryIO

import torch

_LENGTH = struct.Struct(">Q")


def write(state: Any, out: BinaryIO) -> None:
    """Write numbers, text, tensors, and lists and dicts of them. `out` cannot go back."""
    outlines: dict[tuple[Any, ...], tuple[torch.Tensor, torch.Tensor]] = {}

    def outline(tensor: torch.Tensor) -> torch.Tensor:
        if not _goes_apart(tensor):
            return tensor
        place = tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()  # tied ones share it
        if place not in outlines:
            outlines[place] = tensor, torch.empty_like(tensor, device="meta")
        return outlines[place][1]

    structure = io.BytesIO()
    torch.save(_mapped(state, outline), structure)
    out.write(_LENGTH.pack(structure.tell()))
    out.write(structure.getbuffer())
    for tensor, outlined in outlines.values():
        dense = tensor if tensor.stride() == outlined.stride() else torch.empty_like(tensor).copy_(tensor)
        out.write(_memory(dense.resolve_conj().resolve_neg().cpu()))


def read(stream: BinaryIO) -> Any:
    """What `write` wrote, with all tensors on the CPU.

    Raises PeerLostError if the stream ends before.
    """
    from dynamix_ps.comm.state_stream import fill  # of a worker that enters; others receive nothing

    length = bytearray(_LENGTH.size)
    fill(stream, memoryview(length))
    structure = bytearray(_LENGTH.unpack(length)[0])
    fill(stream, memoryview(structure))
    filled: dict[int, torch.Tensor] = {}

    def with_data(outline: torch.Tensor) -> torch.Tensor:
        if not outline.is_meta:
            return outline
        if id(outline) not in filled:
            # torch.empty_like would import sympy here, for a second
            tensor = torch.empty_strided(outline.size(), outline.stride(), dtype=outline.dtype)
            filled[id(outline)] = tensor
            fill(stream, _memory(tensor))
        return filled[id(outline)]

    return _mapped(torch.load(io.BytesIO(structure), weights_only=True), with_data)


def _goes_apart(tensor: torch.Tensor) -> bool:
    """Whether it is nothing but its type, shape and bytes."""
    plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided
    return plain and not (tensor.is_quantized or tensor.is_meta or tensor.requires_grad)


def _memory(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor without gaps between its values."""
    return torch.as_strided(tensor, (tensor.numel(),), (1,)).view(torch.uint8).numpy().data


def _mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same with other tensors. What else a dict has stays with it, such as the versions of a model's modules."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        changed = copy.copy(value)
        changed.update({key: _mapped(one, change) for key, one in value.items()})
        return changed
    if type(value) in (list, tuple):
        return type(value)(_mapped(one, change) for one in value)
    return value
