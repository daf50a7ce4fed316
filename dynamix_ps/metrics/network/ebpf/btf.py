"""Offsets of fields in the structs of the running kernel, from its type information (BTF).

The format is described in the kernel's documentation, Documentation/bpf/btf.rst.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from dynamix_ps.metrics.network.connection import SourceError

KERNEL_BTF = Path("/sys/kernel/btf/vmlinux")
NEWER_KERNEL = "boot a kernel of version 5.10 or newer"

_MAGIC = 0xEB9F
_HEADER = struct.Struct("<HBBIIIII")  # magic, version, flags, header length, types (offset, length), strings (same)
_TYPE = struct.Struct("<III")  # name, info, size or type
_MEMBER = struct.Struct("<III")  # name, type, offset
_POINTER, _STRUCT, _UNION, _TYPEDEF = 2, 4, 5, 8
_SEE_THROUGH = (_TYPEDEF, 9, 10, 11, 18)  # volatile, const, restrict and type tags do not change a layout
_FIXED_TAIL = {1: 4, 3: 12, 14: 4, 17: 4}  # bytes after a type record, by kind
_TAIL_PER_ITEM = {_STRUCT: 12, _UNION: 12, 6: 8, 13: 8, 15: 12, 19: 12}


@dataclass(frozen=True, slots=True)
class StructMember:
    """A member of a struct. `bits` is 0 unless it is a bit field."""

    bit_offset: int
    bits: int

    @property
    def offset(self) -> int:
        return self.bit_offset // 8


@dataclass(frozen=True, slots=True)
class _Type:
    name: int
    kind: int
    items: int
    has_bit_fields: bool
    target: int  # of a pointer, a typedef, ...
    tail: int  # position after the record


def kernel_types(file: Path = KERNEL_BTF) -> bytes:
    """The type information of the running kernel. Raises SourceError if there is none."""
    try:
        return file.read_bytes()
    except OSError as error:
        reason = f"no type information of the kernel (BTF): {file}: {error.strerror}"
        raise SourceError(
            reason, "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y, as distributions build it"
        ) from None


class Btf:
    """Type information of a kernel. Raises SourceError if it is not BTF."""

    def __init__(self, data: bytes) -> None:
        try:
            magic, _, _, header, types_at, types_length, strings_at, strings_length = _HEADER.unpack_from(data)
            if magic != _MAGIC:
                raise ValueError(f"it begins with {magic:#x}, not {_MAGIC:#x}")
            self._data = data[header + types_at : header + types_at + types_length]
            self._strings = data[header + strings_at : header + strings_at + strings_length]
            self._types = self._parse()
        except (struct.error, ValueError) as error:
            raise SourceError(f"{KERNEL_BTF} is not BTF that this program can read: {error}") from None
        self._structs: dict[str, _Type] = {}
        self._typedefs: dict[str, _Type] = {}
        for entry in self._types:
            if entry.kind in (_STRUCT, _UNION) and entry.items:
                self._structs.setdefault(self._name(entry.name), entry)
            elif entry.kind == _TYPEDEF:
                self._typedefs.setdefault(self._name(entry.name), entry)

    def field(self, struct_name: str, path: str) -> StructMember:
        """The field at `path`: members joined by dots, unnamed unions left out. Raises SourceError."""
        entry = self._structs.get(struct_name)
        position, bits = 0, 0
        for name in path.split("."):
            found = self._member(entry, name) if entry else None
            if found is None:
                raise SourceError(f"this kernel has no {struct_name}.{path}", NEWER_KERNEL)
            offset, bits, target = found
            position += offset
            entry = self._plain(target)
        return StructMember(position, bits)

    def offset(self, struct_name: str, path: str) -> int:
        """Offset of the field at `path` in bytes. Raises SourceError."""
        return self.field(struct_name, path).offset

    def has_tracepoint(self, name: str) -> bool:
        """Whether programs can be attached to this tracepoint."""
        return f"btf_trace_{name}" in self._typedefs

    def _parse(self) -> list[_Type]:
        types = [_Type(0, 0, 0, False, 0, 0)]
        position = 0
        while position < len(self._data):
            name, info, target = _TYPE.unpack_from(self._data, position)
            kind, items = info >> 24 & 31, info & 0xFFFF
            position += _TYPE.size
            types.append(_Type(name, kind, items, bool(info >> 31), target, position))
            position += _TAIL_PER_ITEM.get(kind, 0) * items or _FIXED_TAIL.get(kind, 0)
        return types

    def _name(self, offset: int) -> str:
        return self._strings[offset : self._strings.index(b"\0", offset)].decode()

    def _plain(self, number: int) -> _Type:
        entry = self._types[number]
        while entry.kind in _SEE_THROUGH:
            entry = self._types[entry.target]
        return entry

    def _member(self, entry: _Type, wanted: str) -> tuple[int, int, int] | None:
        """(offset in bits, width of a bit field or 0, type) of a member, also of one inside unnamed members."""
        if entry.kind not in (_STRUCT, _UNION):
            return None
        for index in range(entry.items):
            name, target, place = _MEMBER.unpack_from(self._data, entry.tail + index * _MEMBER.size)
            offset, bits = (place & 0xFFFFFF, place >> 24) if entry.has_bit_fields else (place, 0)
            if name and self._name(name) == wanted:
                return offset, bits, target
            if not name and (inner := self._member(self._plain(target), wanted)):
                return offset + inner[0], inner[1], inner[2]
        return None
