"""Sums for a newcomer that follows: in order, into their places, and nobody waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from dynamix_ps.certificates import Certificates
from dynamix_ps.comm.byteps.comm import BytePSComm, FrameworkPlugin, Spread
from dynamix_ps.comm.followed_sums import SumGiver, SumTaker
from dynamix_ps.comm.peers import PeerListener, dial
from dynamix_ps.comm.state_stream import receive_state
from dynamix_ps.errors import PeerLostError, TrainingError
from dynamix_ps.launch.roles.authority import Authority
from tests.launching import wait_for

HOST, TOKEN = "127.0.0.1", "secret"
PATIENCE_S = 20.0
MOST_BYTES = 10_000
pytestmark = pytest.mark.timeout(60)


@contextmanager
def following(certificates: Certificates | None = None) -> Iterator[tuple[SumGiver, SumTaker]]:
    """Both ends; the newcomer has got what comes before the sums."""
    listener = PeerListener(HOST, TOKEN, certificates)
    giver = SumGiver(
        "worker 2",
        lambda: dial(listener.address, TOKEN, certificates),
        (lambda out: out.write(b"what all know"), lambda out: out.write(b"state")),
        MOST_BYTES,
    )
    connection = listener.next(PATIENCE_S)
    assert connection is not None
    try:
        assert [receive_state(connection).read() for _ in range(2)] == [b"what all know", b"state"]
        yield giver, SumTaker(connection)
    finally:
        giver.close()
        connection.close()
        listener.close()


def give(giver: SumGiver, number: int, values: np.ndarray) -> None:
    giver.sum(number, memoryview(values).cast("B"))


def taken(taker: SumTaker, number: int, count: int) -> list[float]:
    place = np.zeros(count)
    assert taker.sum(number, memoryview(place).cast("B"), PATIENCE_S)
    return place.tolist()


@pytest.mark.parametrize("encrypted", [False, True])
def test_sums_come_in_order_as_they_were(encrypted: bool) -> None:
    with following(Authority(time.time()).issue(HOST) if encrypted else None) as (giver, taker):
        values = np.arange(200_000.0)
        give(giver, 4, values[:3])
        values[:3] = -1.0  # the buffer is used again
        give(giver, 1, values)
        giver.note({"plan": 1, "rate": 0.1 + 0.2})
        giver.enter(lambda out: out.write(b"what all know now"))
        assert taken(taker, 4, 3) == [0.0, 1.0, 2.0]
        assert taken(taker, 1, len(values)) == values.tolist()
        assert taker.note() == {"plan": 1, "rate": 0.1 + 0.2}
        assert taker.entry().read() == b"what all know now"
    assert not giver.is_over, "it has entered, and is not gone"


def test_it_may_enter_when_it_has_caught_up() -> None:
    with following() as (giver, taker):

        def rounds(count: int) -> None:
            for number in range(count):
                give(giver, 0, np.full(3, float(number)))
                giver.note({"round": number})

        def take(count: int) -> None:
            """And wait until the other side has seen it, which looks when it sends."""
            before = giver._taken
            for _ in range(count):
                taken(taker, 0, 3)
                taker.note()
            rounds(1)
            wait_for(lambda: giver._taken == before + count, "it to happen")

        assert not giver.is_ready, "it may still be restoring the state"
        rounds(5)
        assert not giver.is_ready
        take(2)
        assert not giver.is_ready, "it is behind"
        take(giver._notes - giver._taken)
        assert giver.is_ready
        rounds(4)
        take(1)
        assert giver.is_ready, "and stays so: the others have voted"


def test_who_never_catches_up_enters_and_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    with following() as (giver, taker):
        for number in range(8):
            give(giver, number, np.full(MOST_BYTES, float(number)))
        assert giver.is_ready and "does not catch up" in caplog.text
        assert [taken(taker, number, MOST_BYTES)[0] for number in range(8)] == list(range(8)), "nothing is left out"


def test_nobody_waits_for_it() -> None:
    """What is given returns at once, whatever the newcomer does."""
    with following() as (giver, _):
        many = threading.Thread(target=lambda: [give(giver, 0, np.zeros(1 << 17)) for _ in range(50)])
        many.start()
        many.join(PATIENCE_S)
        assert not many.is_alive()


def test_a_newcomer_that_is_gone_is_held_up_for_nobody(caplog: pytest.LogCaptureFixture) -> None:
    with following() as (giver, taker):
        taker._connection.close()

        def is_over() -> bool:
            give(giver, 0, np.zeros(1000))
            return giver.is_over

        wait_for(is_over, "its end to be seen")
        assert giver.is_ready and "follows no more" in caplog.text
        give(giver, 0, np.zeros(1000))
        giver.note({})
        assert giver._pieces.empty(), "nothing is kept for it"


def test_one_that_cannot_be_reached_is_gone() -> None:
    def connect() -> None:
        raise PeerLostError("nobody listens there")

    giver = SumGiver("worker 2", connect, (), MOST_BYTES)  # type: ignore[arg-type]
    wait_for(lambda: giver.is_over, "it to happen")
    assert giver.is_ready


def test_a_newcomer_ends_when_the_one_it_follows_is_lost() -> None:
    listener = PeerListener(HOST, TOKEN)
    with dial(listener.address, TOKEN) as giver:
        connection = listener.next(PATIENCE_S)
        assert connection is not None
        taker = SumTaker(connection)
        place = np.zeros(3)
        assert not taker.sum(0, memoryview(place).cast("B"), 0.0), "there is none yet"
        giver.sendall(b"\0\0\0")  # it is lost in the middle
        giver.close()
        with pytest.raises(PeerLostError, match="must be started again"):
            taker.sum(0, memoryview(place).cast("B"), PATIENCE_S)
    connection.close()
    listener.close()


@pytest.mark.parametrize(
    "take",
    [
        lambda taker: taken(taker, 5, 3),
        lambda taker: taken(taker, 4, 2),
        lambda taker: taker.note(),
        lambda taker: taker.entry(),
    ],
    ids=["another sum", "another size", "a note", "the entry"],
)
def test_a_newcomer_that_does_something_else_ends_by_itself(take: Callable[[SumTaker], object]) -> None:
    with following() as (giver, taker):
        give(giver, 4, np.zeros(3))
        with pytest.raises(TrainingError, match="a sum of 24 bytes"):
            take(taker)


class Arrays(FrameworkPlugin):
    """Buffers are arrays of numpy."""

    framework = "numpy"
    load = Mock()

    def memory(self, name: str, buffer: Any) -> tuple[int, int, np.dtype[Any]]:
        return buffer.ctypes.data, buffer.nbytes, buffer.dtype

    def buffer(self, values: Any) -> Any:
        return values


class Plane(BytePSComm):
    """BytePS with its C functions left out: every sum is complete at once."""

    rank, size = 1, 2

    def __init__(self) -> None:
        super().__init__(Arrays)
        self._numbers, self._declared, self._spread = {}, {}, Spread(np.ones(1))
        self._exchange = Mock()
        self._exchange.first_loss.return_value = None
        self.declare("other")
        self.declare("gradients")


def test_a_data_plane_tells_its_sums_and_takes_those_of_another_one() -> None:
    """A sum goes where it was to go, and not before `begin`. Who follows pushes nothing."""
    with following() as (giver, taker):
        one, other = Plane(), Plane()
        one.on_sum = giver.sum
        other.follow(taker)
        own, mine, place = np.full(4, 9.0), np.arange(4.0), np.full(4, -1.0)
        assert one.wait(one.push_pull_into("gradients", own, mine), PATIENCE_S)
        handle = other.push_pull_into("gradients", own, place)
        assert other.wait(handle, PATIENCE_S) and place.tolist() == [0.0, 1.0, 2.0, 3.0]
        assert own.tolist() == [9.0] * 4
        mine += 10
        handle = other.push_pull("gradients", place, 2)
        assert not other.wait(handle, 0.01), "the other one has not got it"
        assert one.wait(one.push_pull("gradients", mine, 2), PATIENCE_S)
        assert other.wait(handle, PATIENCE_S) and place.tolist() == [0.0, 1.0, 12.0, 13.0]
        other._exchange.push_pull_into.assert_not_called()
        other._exchange.push_pull.assert_not_called()
        other.follow(None)
        other.push_pull("gradients", place)
        other._exchange.push_pull.assert_called_once()


def test_who_follows_is_not_among_those_that_are_gathered() -> None:
    """It has no place among their bytes, and gets all of them."""
    with following() as (giver, taker):
        one, other = Plane(), Plane()
        other.follow(taker)
        one.on_sum = giver.sum
        one.rank = 0
        other.rank = 1
        assert one.gather_present("names", b"first") == {0: b"first"}
        assert other.gather_present("names", b"much longer than theirs") == {0: b"first"}
