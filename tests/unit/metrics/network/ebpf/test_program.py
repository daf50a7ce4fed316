"""Compiled programs: how they are kept, and what the kernel gets."""

from __future__ import annotations

import struct

import pytest

from dynamix_ps.metrics.network.ebpf.program import MapLayout, Program, with_descriptors, without_descriptors

_LOAD, _OF_A_MAP, _PLAIN = 0x18, 0x10, 0x00


def instructions(*maps: int) -> bytes:
    """A load of each map's address, with a load of the same number and a jump behind it."""
    code = b""
    for number in maps:
        for registers in (_OF_A_MAP, _PLAIN):
            code += struct.pack("<BBhi", _LOAD, registers | 1, 0, number) + bytes(8)
        code += struct.pack("<BBhi", 0x05, _OF_A_MAP, -1, number)
    return code


def test_what_is_read_is_what_was_written() -> None:
    program = Program(
        maps={"some": MapLayout(1, 4, 8, 100, 0), "others": MapLayout(2, 4, 1, 1, 1)},
        functions={"first": instructions(0, 1), "second": b""},
        hooks={"happened": ("first",)},
        counts_busy=True,
    )
    assert Program.from_json(program.to_json()) == program
    assert list(Program.from_json(program.to_json()).maps) == ["some", "others"]  # functions count by this order


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"maps": {"a": {}}}'])
def test_other_texts_are_refused(text: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        Program.from_json(text)


def test_places_of_maps_become_descriptors_and_nothing_else_changes() -> None:
    kept = instructions(1, 0, 1)
    loaded = with_descriptors(kept, [30, 7])
    for before, after in zip(struct.iter_unpack("<BBhi", kept), struct.iter_unpack("<BBhi", loaded), strict=True):
        assert before[:3] == after[:3]
        of_a_map = before[0] == _LOAD and before[1] & 0xF0 == _OF_A_MAP
        assert after[3] == ([30, 7][before[3]] if of_a_map else before[3])
    assert without_descriptors(loaded, [30, 7]) == kept


def test_an_unknown_map_is_no_program_of_ours() -> None:
    with pytest.raises(KeyError):
        without_descriptors(instructions(9), [30, 7])
