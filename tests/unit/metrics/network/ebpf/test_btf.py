"""The reader of kernel type information, on hand-made types and on the running kernel's."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from dynamix_ps.metrics.network.connection import SourceError
from dynamix_ps.metrics.network.ebpf.btf import KERNEL_BTF, Btf, StructMember, kernel_types

_INT, _POINTER, _ARRAY, _STRUCT, _UNION, _FORWARD, _TYPEDEF, _CONST = 1, 2, 3, 4, 5, 7, 8, 10


class Blob:
    """Writes types in the order they are added; the first has number 1."""

    def __init__(self) -> None:
        self._types, self._strings = b"", b"\0"

    def add(self, kind: int, name: str, target: int = 0, items: int = 0, tail: bytes = b"", bits: bool = False) -> None:
        self._types += struct.pack("<III", self._string(name), bits << 31 | kind << 24 | items, target) + tail

    def members(self, *members: tuple[str, int, int]) -> bytes:
        return b"".join(struct.pack("<III", self._string(name), number, place) for name, number, place in members)

    def data(self, magic: int = 0xEB9F) -> bytes:
        header = struct.pack("<HBBIIIII", magic, 1, 0, 24, 0, len(self._types), len(self._types), len(self._strings))
        return header + self._types + self._strings

    def _string(self, text: str) -> int:
        if not text:
            return 0
        self._strings += text.encode() + b"\0"
        return len(self._strings) - len(text) - 1


@pytest.fixture
def btf() -> Btf:
    """struct outer { int a; union { int x; struct inner b; }; const alias c; unsigned d:5, e:3; struct inner *f; }"""
    blob = Blob()
    blob.add(_INT, "int", target=4, tail=struct.pack("<I", 32))  # 1
    blob.add(_STRUCT, "inner", target=8, items=2, tail=blob.members(("first", 1, 0), ("second", 1, 32)))  # 2
    blob.add(_UNION, "", target=8, items=2, tail=blob.members(("x", 1, 0), ("b", 2, 0)))  # 3
    blob.add(_TYPEDEF, "alias", target=2)  # 4
    blob.add(_CONST, "", target=4)  # 5
    blob.add(_POINTER, "", target=2)  # 6
    blob.add(_ARRAY, "", tail=struct.pack("<III", 1, 1, 3))  # 7
    places = (("a", 1, 0), ("", 3, 64), ("c", 5, 128), ("d", 1, 5 << 24 | 192), ("e", 1, 3 << 24 | 197), ("f", 6, 256))
    blob.add(_STRUCT, "outer", target=40, items=6, tail=blob.members(*places), bits=True)  # 8
    blob.add(_FORWARD, "elsewhere")
    blob.add(_TYPEDEF, "btf_trace_happened", target=6)
    return Btf(blob.data())


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("a", StructMember(0, 0)),
        ("x", StructMember(64, 0)),
        ("b.second", StructMember(96, 0)),
        ("c.second", StructMember(160, 0)),
        ("d", StructMember(192, 5)),
        ("e", StructMember(197, 3)),
        ("f", StructMember(256, 0)),
    ],
)
def test_places_of_fields(btf: Btf, path: str, field: StructMember) -> None:
    assert btf.field("outer", path) == field
    assert btf.offset("outer", path) == field.bit_offset // 8


@pytest.mark.parametrize("path", ["nothing", "a.b", "f.first", "b.third"])
def test_a_missing_field_is_named(btf: Btf, path: str) -> None:
    with pytest.raises(SourceError, match=rf"this kernel has no outer\.{path}"):
        btf.field("outer", path)


def test_a_missing_struct_is_named(btf: Btf) -> None:
    with pytest.raises(SourceError, match=r"no elsewhere\.a"):
        btf.field("elsewhere", "a")


def test_tracepoints(btf: Btf) -> None:
    assert btf.has_tracepoint("happened")
    assert not btf.has_tracepoint("never")


def test_a_missing_file_says_what_the_kernel_needs(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="No such file") as error:
        kernel_types(tmp_path / "btf")
    assert "CONFIG_DEBUG_INFO_BTF" in error.value.fix


def test_other_data_is_refused() -> None:
    with pytest.raises(SourceError, match="it begins with 0xdead"):
        Btf(Blob().data(magic=0xDEAD))
    with pytest.raises(SourceError, match="is not BTF"):
        Btf(b"\x9f\xeb")


@pytest.mark.skipif(not KERNEL_BTF.exists(), reason=f"this kernel has no {KERNEL_BTF}")
def test_the_running_kernel() -> None:
    btf = Btf(kernel_types())
    assert btf.has_tracepoint("inet_sock_set_state")
    assert btf.offset("sock_common", "skc_daddr") == 0
    assert btf.offset("tcp_sock", "inet_conn.icsk_inet.inet_sport") == btf.offset("inet_sock", "inet_sport")
