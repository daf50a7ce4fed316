"""One worker's reading of its shards: in order, ahead of use, with a place for every sample."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from dynamix_ps.errors import TrainingError
from worker_hooks.loading.shard_reader import ShardReader
from worker_hooks.sampling.shard_list import Piece
from worker_hooks.sampling.shards import ReadingReport

LENGTHS = {0: 5, 1: 0, 2: 3, 3: 100}


@pytest.fixture
def reader() -> Iterator[ShardReader]:
    made = ShardReader(lambda shard: iter([(shard, number) for number in range(LENGTHS[shard])]), str)
    made.read_ahead(10)
    yield made
    made.close()


def test_samples_come_in_the_order_of_the_pieces_with_their_places(reader):
    reader.give([Piece(2, 1), Piece(1), Piece(0)])
    reader.wait_for(10)
    assert [sample for sample, _ in reader.take(3)] == [(2, 1), (2, 2), (0, 0)]
    assert reader.report() == ReadingReport(
        ready=4, wants=3, done=2, offset=1
    )  # shards have 8 / 3 samples, 6 are lacking
    reader.take(4)
    assert reader.report()._replace(wants=1) == ReadingReport(ready=0, wants=1, done=3, offset=0)


def test_samples_that_are_put_back_come_again(reader):
    reader.give([Piece(3)])
    reader.wait_for(10)
    taken = reader.take(4)
    reader.put_back(taken[2:])
    assert reader.report()[2:] == (0, 2)
    assert [sample for sample, _ in reader.take(3)] == [(3, 2), (3, 3), (3, 4)]


def test_no_more_is_read_than_asked_for(reader):
    reader.give([Piece(3)])
    reader.wait_for(10)
    assert reader.report() == ReadingReport(ready=10, wants=0, done=0, offset=0)


def test_pieces_that_are_given_up_are_done_and_the_next_one_is_read(reader):
    reader.give([Piece(3), Piece(0)])
    reader.wait_for(10)
    reader.give_up()
    assert reader.report()[2:] == (2, 0) and reader.report().wants
    reader.give([Piece(2, 2)])
    reader.wait_for(10)
    assert [sample for sample, _ in reader.take(1)] == [(2, 2)]
    assert reader.report()[2:] == (3, 0)


def test_a_pass_begins_with_nothing_of_the_one_before(reader):
    reader.give([Piece(3), Piece(0)])
    reader.wait_for(10)
    reader.take(4)
    reader.begin_pass()
    assert reader.report()._replace(wants=1) == ReadingReport(ready=0, wants=1, done=0, offset=0)
    reader.give([Piece(2), Piece(0)])
    reader.wait_for(8)
    assert [place for _, place in reader.take(4)] == [(0, 0), (0, 1), (0, 2), (1, 0)]


def test_the_end_is_told_in_the_thread_that_has_read():
    ended = threading.Event()
    names = []

    def at_end() -> None:
        names.append(threading.current_thread().name)
        ended.set()

    reader = ShardReader(lambda shard: iter(range(9)), str, at_end)
    reader.read_ahead(3)
    reader.give([Piece(0)])
    reader.wait_for(3)
    reader.close()
    assert ended.wait(30) and names == ["dynamix-shards"]


def test_an_error_is_raised_where_the_samples_before_it_do_not_suffice():
    def broken(shard: int) -> Iterator[int]:
        yield from range(3)
        raise TrainingError("bad sample")

    reader = ShardReader(broken, lambda shard: f"{shard} (x.tar)")
    reader.read_ahead(5)
    reader.give([Piece(7)])
    reader.wait_for(3)
    with pytest.raises(TrainingError, match=r"shard 7 \(x.tar\): bad sample"):
        reader.wait_for(4)
    reader.close()
