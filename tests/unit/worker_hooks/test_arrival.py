"""The state on its way to a worker that enters."""

from __future__ import annotations

import io
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import BinaryIO
from unittest.mock import Mock

import numpy as np
import pytest

from dynamix_ps.comm.followed_sums import SumTaker
from dynamix_ps.comm.peers import PeerListener
from dynamix_ps.comm.state_stream import fill
from dynamix_ps.membership.known_members import Planned
from dynamix_ps.membership.messages import Process
from worker_hooks.membership.arrival import StateCopy, follow, give
from worker_hooks.membership.handover import Handover

TOKEN = "secret"
ACCESS = Mock(token=TOKEN, certificates=None)
NUMBERS = np.arange(2e6)
pytestmark = pytest.mark.timeout(60)

HANDOVER = Handover(
    framework="torch",
    settings={"mode": "adapt", "window": "50"},
    parameters={"0.weight": "float32 of shape (4, 4)", "0.bias": "float32 of shape (4,)"},
    data=[0.0, 400.0, 0.1 + 0.2],
    lengths=7,
    planned=Planned(
        [Process("worker", 0, "a", "10.0.0.1:1"), Process("worker", 2, "b")], [Process("server", 1, "c")], 3
    ),
    follows=False,
    round=812,
    sums={"numbers": {"a": 0, "b": 1}, "shares": [1 / 3, 2 / 3], "window_bytes": None},
    lag=2,
    steps=800,
    sums_made=810,
    window=80,
    present=[0, 2],
    followed=[],
    newest=None,
    wire={"state": {"wire": "bf16", "wider_wait": 16}, "is_over": False},
    votes={"plans": {}, "entries": {"version": 1, "coming": []}, "departures": [[1, 40]]},
    gathers=[0, 0, False],
    owed=[[813, [[0, 4, 8]]]],
)


def write(out: BinaryIO) -> None:
    out.write(b"begin")
    out.write(NUMBERS)


@contextmanager
def newcomer() -> Iterator[tuple[Process, Callable[[], SumTaker]]]:
    """One that enters, and what it takes from who connects."""
    with closing(PeerListener("127.0.0.1", TOKEN)) as listener, ExitStack() as takers:

        def taker() -> SumTaker:
            connection = listener.next(20.0)
            assert connection is not None
            return takers.enter_context(closing(SumTaker(connection)))

        yield Process("worker", 2, "b", "", listener.address), taker


def takes_state(taker: SumTaker) -> bool:
    begin, numbers = bytearray(5), np.zeros_like(NUMBERS)
    fill(taker.stream, memoryview(begin))
    fill(taker.stream, memoryview(numbers).cast("B"))
    return begin == b"begin" and np.array_equal(numbers, NUMBERS)


@pytest.mark.parametrize("takes", [True, False])
def test_who_gives_the_state_knows_whether_the_newcomer_has_it(takes: bool) -> None:
    with newcomer() as (process, taken), ThreadPoolExecutor() as threads:
        given = threads.submit(give, ACCESS, process, HANDOVER, write)
        taker = taken()
        if takes:
            assert Handover.of(taker.told()) == HANDOVER and takes_state(taker)
        taker.close()
        assert given.result() is takes


def test_who_follows_gets_what_all_know_and_a_copy_of_the_state_which_is_free_then() -> None:
    copy = StateCopy()
    copy.write(b"a small state")
    kept = weakref.ref(copy)
    with newcomer() as (process, taken), closing(follow(ACCESS, process, HANDOVER, copy)) as giver:
        del copy
        handover = Handover.of((taker := taken()).told())
        assert handover == HANDOVER
        assert handover.planned.workers[0].address == "10.0.0.1:1", "which does not count in a comparison"
        assert list(handover.parameters) == list(HANDOVER.parameters), "in order"
        fill(taker.stream, memoryview(state := bytearray(13)))
        assert state == b"a small state", "before there is a sum"
        giver.note({"plan": 1})
        assert taker.note() == {"plan": 1} and kept() is None


@pytest.mark.parametrize("block_bytes", [100, 1 << 20], ids=["many blocks", "one"])
def test_a_copy_of_a_state_is_as_it_was_when_it_was_made(block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker_hooks.membership.arrival._BLOCK_BYTES", block_bytes)
    numbers, copy, out = np.arange(1000.0), StateCopy(), io.BytesIO()
    copy.write(b"begin")
    copy.write(numbers)
    numbers[:] = -1.0
    copy.write_to(out)
    assert out.getvalue() == b"begin" + np.arange(1000.0).tobytes() and out.tell() == copy.size_bytes
