"""What workers tell each other over sums in which one of them is missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dynamix_ps.comm import base
from dynamix_ps.comm.local import LocalComm
from dynamix_ps.errors import PeerLostError


class Sums(LocalComm):
    """A worker whose sums are given: of every key what the others add."""

    def __init__(self, rank: int, size: int, others: dict[str, list[Any]]) -> None:
        super().__init__()
        self.rank, self.size, self._others = rank, size, others

    def declare(self, name: str, rounded: int = 0, priority: int = 0) -> None:
        pass

    def total(self, name: str, values: Any) -> Any:
        values += np.asarray(self._others[name].pop(0), dtype=values.dtype)
        return values


def test_the_others_are_told_apart_from_the_lost() -> None:
    """Worker 0 says `ab`, worker 1 nothing, worker 2 is lost."""
    sums = {"k.lengths": [[0, 1, 0]], "k.bytes": [[0, 0, 0, 1]]}
    assert Sums(0, 3, sums).gather_present("k", b"ab") == {0: b"ab", 1: b""}
    sums = {"k.lengths": [[0, 1, 0]], "k.bytes": [[0, 0, 0, 1]]}
    with pytest.raises(PeerLostError, match="worker 2 is lost, of which 'k' is needed"):
        Sums(0, 3, sums).gather("k", b"ab")


def test_who_is_lost_between_the_two_sums_is_lost() -> None:
    sums = {"k.lengths": [[0, 3, 1]], "k.bytes": [[0, 0, 0, 0, 0, 0, 1]]}
    assert Sums(0, 3, sums).gather_present("k", b"ab") == {0: b"ab", 2: b""}


def test_nobody_takes_zeros_for_what_a_lost_worker_was_to_send() -> None:
    assert Sums(1, 2, {"k.length": [[3]], "k.bytes": [[97, 98, 1]]}).broadcast("k", b"") == b"ab"
    for sums in ({"k.length": [[0]]}, {"k.length": [[3]], "k.bytes": [[0, 0, 0]]}):
        with pytest.raises(PeerLostError, match="that was to send 'k' is lost"):
            Sums(1, 2, sums).broadcast("k", b"")


def test_what_does_not_fit_into_one_sum_comes_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_CHUNK_BYTES", 2)
    sums = {"k.length": [[6]], "k.bytes": [[97, 98, 1], [99, 100, 1], [101, 0, 1]]}
    assert Sums(1, 2, sums).broadcast("k", b"") == b"abcde"


def test_another_than_worker_0_may_send() -> None:
    assert Sums(1, 2, {"k.length": [[0]], "k.bytes": [[0, 0, 0]]}).broadcast("k", b"ab", sends=True) == b"ab"
    assert Sums(0, 2, {"k.length": [[1]]}).broadcast("k", b"mine", sends=False) == b""
