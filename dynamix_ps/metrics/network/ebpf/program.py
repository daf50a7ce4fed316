"""A compiled eBPF program, as it is kept in a file and given to the kernel. Pure."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

_INSTRUCTION = struct.Struct("<BBhi")  # code, registers, offset, immediate value
_LOAD_64_BITS, _OF_A_MAP = 0x18, 1  # code; source register: the value is the descriptor of a map


@dataclass(frozen=True, slots=True)
class MapLayout:
    """A map that functions share with user space. `kind` and `flags` are the kernel's numbers."""

    kind: int
    key_bytes: int
    value_bytes: int
    entries: int
    flags: int


@dataclass(frozen=True, slots=True)
class Program:
    """Functions and their maps.

    Attributes:
        maps: by name, in the order by which functions name them.
        functions: instructions by name. Where the kernel wants the descriptor of a map, they have its place in `maps`.
        hooks: functions by the raw tracepoint to which they are attached.
        counts_busy: whether the kernel has the fields from which busy time is read.
    """

    maps: Mapping[str, MapLayout]
    functions: Mapping[str, bytes]
    hooks: Mapping[str, tuple[str, ...]]
    counts_busy: bool

    def to_json(self) -> bytes:
        functions = {name: base64.b64encode(code).decode() for name, code in self.functions.items()}
        maps = {name: asdict(layout) for name, layout in self.maps.items()}
        fields = {"maps": maps, "functions": functions, "hooks": self.hooks, "counts_busy": self.counts_busy}
        return json.dumps(fields).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Program:
        """Raises ValueError, KeyError or TypeError if it is not what `to_json` makes."""
        fields = json.loads(text)
        return cls(
            maps={name: MapLayout(**layout) for name, layout in fields["maps"].items()},
            functions={name: base64.b64decode(code) for name, code in fields["functions"].items()},
            hooks={name: tuple(functions) for name, functions in fields["hooks"].items()},
            counts_busy=fields["counts_busy"],
        )


def with_descriptors(code: bytes, descriptors: Sequence[int]) -> bytes:
    """The instructions for the kernel: places of maps become their descriptors."""
    return _renumbered(code, dict(enumerate(descriptors)))


def without_descriptors(code: bytes, descriptors: Sequence[int]) -> bytes:
    """The reverse. Raises KeyError if the instructions use another map."""
    return _renumbered(code, {descriptor: place for place, descriptor in enumerate(descriptors)})


def _renumbered(code: bytes, numbers: Mapping[int, int]) -> bytes:
    changed = bytearray(code)
    for position in range(0, len(code), _INSTRUCTION.size):
        kind, registers, offset, value = _INSTRUCTION.unpack_from(code, position)
        if kind == _LOAD_64_BITS and registers >> 4 == _OF_A_MAP:
            _INSTRUCTION.pack_into(changed, position, kind, registers, offset, numbers[value])
    return bytes(changed)
