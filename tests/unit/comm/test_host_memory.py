"""Buffers that roles of one host share, where sharing fails."""

from __future__ import annotations

import pytest

from dynamix_ps.comm.host_memory import HostMemory
from dynamix_ps.comm.segments import Segment, SegmentError


def test_a_worker_that_cannot_share_says_why_once_and_takes_ordinary_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(size_bytes: int) -> Segment:
        raise SegmentError(f"cannot reserve {size_bytes} bytes")

    monkeypatch.setattr(Segment, "create", refuse)
    told: list[str] = []
    memory = HostMemory(None, 0, [0], lambda name, data: [data, b""], told.append)  # type: ignore[arg-type]
    assert memory.allocate(64) is None
    assert memory.allocate(128) is None
    assert told == ["sums travel by TCP, though roles are on one host: cannot reserve 64 bytes"]
