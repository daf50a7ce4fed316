"""The state on its way to a worker that enters."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import BinaryIO
from unittest.mock import Mock

import numpy as np
import pytest

from dynamix_ps.comm.peers import PeerListener
from dynamix_ps.comm.state_stream import fill
from dynamix_ps.errors import TrainingError
from dynamix_ps.membership.known_members import Planned
from dynamix_ps.membership.messages import Process
from worker_hooks.membership.arrival import Arrival, StateCopy, give
from worker_hooks.membership.handover import Handover

TOKEN = "secret"
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


@pytest.fixture
def listener() -> Iterator[PeerListener]:
    with closing(PeerListener("127.0.0.1", TOKEN)) as one:
        yield one


@pytest.fixture
def giving(listener: PeerListener, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Future[bool]]]:
    """Gives the state to who listens, in another thread."""
    monkeypatch.setattr("worker_hooks.membership.arrival._DIAL_S", 0.0)
    access, newcomer = Mock(token=TOKEN, certificates=None), Process("worker", 2, "b", "", listener.address)

    def write(out: BinaryIO) -> None:
        out.write(b"begin")
        out.write(NUMBERS)

    with ThreadPoolExecutor() as threads:
        yield lambda: threads.submit(give, access, newcomer, HANDOVER, write)


def test_what_is_given_arrives_as_it_is(listener: PeerListener, giving: Callable[[], Future[bool]]) -> None:
    given = giving()
    arrival = Arrival(listener)
    assert arrival.handover == HANDOVER and arrival.handover.planned is not None
    assert arrival.handover.planned.workers[0].address == "10.0.0.1:1", "which does not count in a comparison"
    assert list(arrival.handover.parameters) == list(HANDOVER.parameters), "in order"
    begin, numbers = bytearray(5), np.zeros_like(NUMBERS)
    fill(arrival.state, memoryview(begin))
    fill(arrival.state, memoryview(numbers).cast("B"))
    assert begin == b"begin" and np.array_equal(numbers, NUMBERS)
    assert arrival.complete() is None, "it is in the next sum"
    assert given.result()


def test_a_newcomer_that_does_something_else_takes_no_state_and_nobody_waits_for_it(
    listener: PeerListener, giving: Callable[[], Future[bool]]
) -> None:
    given = giving()
    with pytest.raises(TrainingError), Arrival(listener).or_closed():
        raise TrainingError("another model")
    assert not given.result()
    listener.close()
    assert not giving().result(), "it cannot be reached any more"


@pytest.mark.parametrize("block_bytes", [100, 1 << 20], ids=["many blocks", "one"])
def test_a_copy_of_a_state_is_as_it_was_when_it_was_made(block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of what writes to files alone, as NumPy does."""
    monkeypatch.setattr("worker_hooks.membership.arrival._BLOCK_BYTES", block_bytes)
    numbers, copy, out = np.arange(1000.0), StateCopy(), io.BytesIO()
    np.savez(copy, numbers=numbers)
    numbers[:] = -1.0
    copy.write_to(out)
    assert out.tell() == copy.size_bytes
    out.seek(0)
    with np.load(out) as archive:
        assert archive["numbers"].tolist() == list(range(1000))
