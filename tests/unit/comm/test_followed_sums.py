"""Sums for a newcomer that follows: in order, into their places, and nobody waits for it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, BinaryIO
from unittest.mock import Mock

import numpy as np
import pytest

from dynamix_ps.certificates import Certificates
from dynamix_ps.comm.byteps.comm import BytePSComm, Spread
from dynamix_ps.comm.followed_sums import SumGiver, SumTaker
from dynamix_ps.comm.peers import PeerListener, dial
from dynamix_ps.errors import PeerLostError, TrainingError
from dynamix_ps.launch.roles.authority import Authority
from tests.launching import wait_for

HOST, TOKEN = "127.0.0.1", "secret"
PATIENCE_S = 20.0
pytestmark = pytest.mark.timeout(60)


@contextmanager
def following(
    certificates: Certificates | None = None, most_bytes: int = 1 << 30
) -> Iterator[tuple[SumGiver, SumTaker]]:
    """Both ends, from the first sum on."""
    listener = PeerListener(HOST, TOKEN, certificates)

    @contextmanager
    def begun() -> Iterator[tuple[socket.socket, BinaryIO]]:
        with dial(listener.address, TOKEN, certificates) as connection, connection.makefile("wb") as out:
            yield connection, out

    giver = SumGiver("worker 2", begun(), most_bytes)
    connection = listener.next(PATIENCE_S)
    assert connection is not None
    try:
        with closing(SumTaker(connection)) as taker:
            yield giver, taker
    finally:
        giver.close()
        listener.close()


def give(giver: SumGiver, number: int, values: np.ndarray) -> None:
    giver.sum(number, memoryview(values).cast("B"))


def taken(taker: SumTaker, number: int, count: int) -> list[float]:
    place = np.zeros(count)
    assert taker.sum(number, memoryview(place).cast("B"), PATIENCE_S)
    return place.tolist()


@pytest.mark.parametrize("encrypted", [False, True])
def test_sums_come_in_order_as_they_were_and_the_one_that_gives_them_hears_of_it(encrypted: bool) -> None:
    with following(Authority(time.time()).issue(HOST) if encrypted else None) as (giver, taker):
        values = np.arange(200_000.0)
        give(giver, 4, values[:3])
        values[:3] = -1.0  # the buffer is used again
        give(giver, 1, values)
        giver.note({"plan": 1, "rate": 0.1 + 0.2})
        assert taken(taker, 4, 3) == [0.0, 1.0, 2.0]
        assert taken(taker, 1, len(values)) == values.tolist()
        assert taker.note() == {"plan": 1, "rate": 0.1 + 0.2}
        assert not taker.sum(1, memoryview(bytearray(8)), 0.0), "there is none yet"
        while not giver.is_ready:  # who gives them hears of it when it sends
            give(giver, 2, values[:1])
            assert taken(taker, 2, 1) == [-1.0]
        giver.enter(b"what all know now")
        assert taker.told() == b"what all know now"
    assert not giver.is_over, "it has entered, and is not gone"


def test_nobody_waits_for_who_never_catches_up_before_it_enters(caplog: pytest.LogCaptureFixture) -> None:
    with following(most_bytes=10_000) as (giver, taker):
        for number in range(50):
            give(giver, number, np.full(1 << 17, float(number)))
        assert giver.is_ready
        giver.enter(b"")
        assert "does not catch up" in caplog.text
        for number in range(50):
            assert taken(taker, number, 1 << 17)[0] == number, "nothing is left out"


def test_a_newcomer_that_is_gone_is_held_up_for_nobody(caplog: pytest.LogCaptureFixture) -> None:
    with following() as (giver, taker):
        taker.close()

        def is_over() -> bool:
            give(giver, 0, np.zeros(1000))
            return giver.is_over

        wait_for(is_over, "its end to be seen")
        assert giver.is_ready and "follows no more" in caplog.text
        giver.note({})
        wait_for(giver._pieces.empty, "nothing to be kept for it")


def test_one_that_cannot_be_reached_is_gone() -> None:
    @contextmanager
    def begun() -> Iterator[tuple[socket.socket, BinaryIO]]:
        raise PeerLostError("nobody listens there")
        yield

    giver = SumGiver("worker 2", begun(), 0)
    wait_for(lambda: giver.is_over, "it to happen")
    assert giver.is_ready


def test_a_newcomer_ends_when_the_one_it_follows_gives_no_more() -> None:
    with following() as (giver, taker):
        give(giver, 0, np.zeros(3))
        giver.close()
        assert taken(taker, 0, 3) == [0.0] * 3
        with pytest.raises(PeerLostError, match="must be started again"):
            taken(taker, 0, 3)


@pytest.mark.parametrize(
    "take",
    [
        lambda taker: taken(taker, 5, 3),
        lambda taker: taken(taker, 4, 2),
        lambda taker: taker.note(),
    ],
    ids=["another sum", "another size", "a note"],
)
def test_a_newcomer_that_does_something_else_ends_by_itself(take: Callable[[SumTaker], object]) -> None:
    with following() as (giver, taker):
        give(giver, 4, np.zeros(3))
        with pytest.raises(TrainingError, match="a sum of 24 bytes"):
            take(taker)


def plane(rank: int) -> Any:
    """BytePS with its C functions left out: every sum is complete at once. Buffers are arrays of numpy."""
    memory = Mock(side_effect=lambda name, buffer: (buffer.ctypes.data, buffer.nbytes, buffer.dtype))
    comm = BytePSComm(lambda: Mock(memory=memory, buffer=lambda values: values, values=lambda buffer: buffer))
    comm.rank, comm.size, comm._exchange = rank, 2, Mock()
    comm._exchange.first_loss.return_value = None
    comm._numbers, comm._declared, comm._spread = {}, {}, Spread(np.ones(1))
    comm.declare("other")
    comm.declare("gradients")
    return comm


def test_a_data_plane_tells_its_sums_and_takes_those_of_another_one() -> None:
    """A sum goes where it was to go, and not before `begin`. Who follows pushes nothing."""
    with following() as (giver, taker):
        one, other = plane(0), plane(1)
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
        one, other = plane(0), plane(1)
        other.follow(taker)
        one.on_sum = giver.sum
        assert one.gather_present("names", b"first") == {0: b"first"}
        assert other.gather_present("names", b"much longer than theirs") == {0: b"first"}
