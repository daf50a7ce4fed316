"""Buffers that roles of one host share: who sums among themselves, and where sharing fails."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dynamix_ps.comm.byteps.host_memory import HostMemory, groups_of
from dynamix_ps.comm.byteps.segments import Segment, SegmentError

ALONE: frozenset[int] = frozenset()


@pytest.mark.parametrize(
    ("opened", "groups"),
    [
        ([ALONE], [{0}]),
        ([{1}, {0}], [{0, 1}, {0, 1}]),
        ([{2}, {3}, {0}, {1}], [{0, 2}, {1, 3}, {0, 2}, {1, 3}]),
        ([{1}, {0}, ALONE], [{0, 1}, {0, 1}, {2}]),
        ([{1}, ALONE], [{0}, {1}]),  # worker 1 could not open the memory of worker 0
        ([{1, 2}, {0, 2}, {0}], [{0}, {1}, {2}]),
    ],
)
def test_groups(opened: list[set[int]], groups: list[set[int]]) -> None:
    assert groups_of([frozenset(ranks) for ranks in opened]) == groups


def test_a_worker_that_cannot_share_says_why_once_and_takes_ordinary_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(size_bytes: int) -> Segment:
        raise SegmentError(f"cannot reserve {size_bytes} bytes")

    monkeypatch.setattr(Segment, "create", refuse)
    told: list[str] = []
    referred: list[tuple[int, list[int]]] = []
    exchange = SimpleNamespace(refer=lambda _, size, contributions, number, servers: referred.append((size, servers)))
    memory = HostMemory(exchange, 0, [0], lambda name, data: [data, b""], told.append)  # type: ignore[arg-type]
    assert len(memory.allocate(64)) == 64
    assert not memory.allocate(128).any()
    assert told == ["sums travel by TCP, though roles are on one host: cannot reserve 64 bytes"]
    assert referred == [(64, []), (128, [])]
