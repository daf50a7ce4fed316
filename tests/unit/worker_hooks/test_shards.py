"""Streams: every sample once per pass and planned sizes to the end, whatever lengths, speeds and plans are."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import example, given
from hypothesis import strategies as st

from worker_hooks.sampling.shard_list import Piece
from worker_hooks.sampling.shards import ReadingReport, ShardPass


@dataclass
class Reader:
    """One worker's reading: at every report it has read some more, up to `ahead` samples."""

    lengths: list[int]
    speed: int  # samples between two sums
    sequence: list[Piece] = field(default_factory=list)
    place: int = 0  # piece that is read
    at: int = 0  # sample in it
    buffer: list[tuple[int, int]] = field(default_factory=list)  # (number in the sequence, sample)

    def give(self, pieces: list[Piece]) -> None:
        if pieces and self.place == len(self.sequence):
            self.at = pieces[0].offset
        self.sequence += pieces

    def read(self, samples: int, ahead: int) -> None:
        samples = min(samples, ahead - len(self.buffer))
        while samples > 0 and self.place < len(self.sequence):
            if self.at < self.lengths[self.sequence[self.place].shard]:
                self.buffer.append((self.place, self.at))
                self.at, samples = self.at + 1, samples - 1
            if self.at >= self.lengths[self.sequence[self.place].shard]:
                self.place += 1
                self.at = self.sequence[self.place].offset if self.place < len(self.sequence) else 0

    def report(self, needed: int) -> ReadingReport:
        self.read(max(self.speed, needed - len(self.buffer)), 2 * needed)  # it waits until it has what is needed
        wants = 1 if self.place == len(self.sequence) else 0
        done, offset = self.buffer[0] if self.buffer else (self.place, self.at)
        return ReadingReport(len(self.buffer), wants, done, offset)

    def take(self, samples: int) -> list[tuple[int, int]]:
        taken, self.buffer = self.buffer[:samples], self.buffer[samples:]
        assert len(taken) == samples, "a batch takes more than its worker has"
        return [(self.sequence[place].shard, sample) for place, sample in taken]

    def give_up(self) -> None:
        self.buffer, self.place, self.at = [], len(self.sequence), 0


class Batches(list):
    """The samples of every batch of every worker; `sizes` has (sizes, shards that waited) of each iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = []


def simulate(lengths, speeds, plans, smallest=1, pieces=None, stop=None):
    """A pass under `plans`, one for each iteration and over again.

    Returns (samples of every batch of every worker, state after `stop` iterations or at the end, rounds beside them).
    """
    workers = len(speeds)
    pieces = [Piece(shard) for shard in range(len(lengths))] if pieces is None else pieces
    now = ShardPass(pieces, workers, smallest)
    readers = [Reader(lengths, speed) for speed in speeds]
    batches, rounds = Batches(), 0
    while not now.is_over and len(batches) != stop:
        sizes = plans[len(batches) % len(plans)]
        needed = [now.needed(size) for size in sizes]

        def hand_out(sizes=sizes):
            for reader, pieces in zip(readers, now.hand_out(sizes), strict=True):
                reader.give(pieces)

        hand_out()
        while now.is_short(sizes):
            rounds += 1
            assert rounds < 10 * (len(lengths) + len(batches) + 10), "the workers report without end"
            now.see([reader.report(need) for reader, need in zip(readers, needed, strict=True)])
            for rank in now.idle(sizes):
                now.give_up(rank)
                readers[rank].give_up()
            hand_out()
        used = now.take(sizes)
        if not any(used):
            break
        batches.sizes.append((used, now.waiting))
        batches.append([reader.take(size) for reader, size in zip(readers, used, strict=True)])
        now.see([reader.report(need) for reader, need in zip(readers, needed, strict=True)])
    return batches, now, rounds


def flat(batches):
    return Counter(sample for batch in batches for mine in batch for sample in mine)


def every_sample(lengths):
    return Counter((shard, sample) for shard, length in enumerate(lengths) for sample in range(length))


@st.composite
def passes(draw):
    workers = draw(st.integers(2, 5))
    sizes = st.lists(st.integers(0, 12), min_size=workers, max_size=workers).filter(any)
    return {
        "lengths": draw(st.lists(st.one_of(st.integers(0, 4), st.integers(0, 60)), min_size=1, max_size=25)),
        "speeds": draw(st.lists(st.integers(0, 40), min_size=workers, max_size=workers)),
        "plans": draw(st.lists(sizes, min_size=1, max_size=6)),
        "smallest": draw(st.integers(1, 2)),
    }


@given(passes())
@example({"lengths": [10, 0, 3, 1], "speeds": [5, 5], "plans": [[4, 0], [0, 4]], "smallest": 2})
def test_every_sample_once_for_any_lengths_speeds_and_plans(one):
    batches, now, _ = simulate(**one)
    assert flat(batches) == every_sample(one["lengths"])
    assert now.left() == []
    assert all(any(batch) for batch in batches), "an iteration without a sample"


@given(passes(), st.integers(1, 12), st.integers(2, 5))
def test_every_sample_once_after_a_resume_with_any_number_of_workers(one, stop, workers):
    before, now, _ = simulate(**one, stop=stop)
    plans = [random.Random(stop).choices(range(1, 9), k=workers)]
    after, now, _ = simulate(one["lengths"], [7] * workers, plans, one["smallest"], now.left())
    assert flat(before) + flat(after) == every_sample(one["lengths"])


@given(passes())
def test_the_fastest_worker_takes_as_planned_while_a_shard_waits(one):
    batches, _, _ = simulate(**one)
    for number, (mine, waiting) in enumerate(batches.sizes):
        sizes = one["plans"][number % len(one["plans"])]
        planned = tuple(max(size, one["smallest"]) if size else 0 for size in sizes)
        assert max(mine) == max(planned) or not waiting
        assert all(took <= size + one["smallest"] - 1 for took, size in zip(mine, planned, strict=True))


def test_a_fast_worker_takes_more_shards():
    lengths = [20] * 30
    batches, _, _ = simulate(lengths, [100, 100], [[12, 4]])
    taken = [sum(len(batch[rank]) for batch in batches) for rank in range(2)]
    assert 2.5 < taken[0] / taken[1] < 3.5


def test_shards_that_are_longer_than_what_is_read_ahead_need_no_further_reports():
    _, _, rounds = simulate([50] * 12, [20, 20, 20], [[8, 4, 4]])
    assert rounds == 1  # at the begin


def test_the_rest_is_spread_over_as_few_iterations_as_the_longest_needs():
    now = ShardPass([], 3)
    now.see([ReadingReport(64, 1), ReadingReport(5, 1), ReadingReport(0, 1)])
    assert now.take((32, 32, 32)) == (32, 3, 0)
    assert now.take((32, 32, 32)) == (32, 2, 0)
    assert now.is_over


def test_no_batch_has_a_single_sample_where_batch_norm_needs_two():
    batches, _, _ = simulate([33, 17, 9], [50, 50], [[8, 4]], smallest=2)
    assert flat(batches) == every_sample([33, 17, 9])
    assert not [len(mine) for batch in batches for mine in batch if len(mine) == 1]


def test_those_who_want_get_the_next_pieces_in_turn_by_rank():
    now = ShardPass([Piece(shard) for shard in range(5)], 3)
    now.see([ReadingReport(wants=3), ReadingReport(wants=0, ready=1), ReadingReport(wants=9)])
    assert now.hand_out((8, 8, 8)) == [[Piece(0), Piece(2), Piece(4)], [], [Piece(1), Piece(3)]]


def test_a_slow_worker_does_not_hold_up_the_end_of_a_pass():
    batches, _, _ = simulate([1000] * 40, [200] * 4, [[64, 64, 64, 16]])
    assert flat(batches) == every_sample([1000] * 40)
    assert len(batches) < 1.1 * 40_000 / 208


def test_the_pieces_of_a_worker_whose_size_becomes_0_go_to_the_others():
    now = ShardPass([Piece(0), Piece(1), Piece(2)], 2)
    now.hand_out((4, 4))
    now.see([ReadingReport(8, 0, 0, 3), ReadingReport(8, 0, 0, 5)])
    assert now.is_short((4, 0))
    now.give_up(1)
    assert now.left() == [Piece(0, 3), Piece(1, 5), Piece(2)]
    now.see([ReadingReport(8, 1, 0, 3), ReadingReport(0, 1, 1, 0)])
    assert now.hand_out((4, 0)) == [[Piece(1, 5)], []]


def test_what_a_lost_worker_had_not_used_up_is_for_others():
    now = ShardPass([Piece(shard) for shard in range(4)], 3)
    now.hand_out((4, 4, 4))
    now.see([ReadingReport(8, 0, 0, 3), ReadingReport(8, 0, 0, 5), ReadingReport(8, 0, 0, 0)])
    now.see([ReadingReport(8, 0, 0, 3), None, ReadingReport(0, 1, 1, 0)])
    assert now.left() == [Piece(0, 3), Piece(1, 5), Piece(3)]
    assert now.hand_out((4, 4, 4)) == [[], [], [Piece(1, 5)]]
    assert not now.is_short((4, 4, 4)) or now.take((4, 4, 4))[1] == 0
    now.see([ReadingReport(0, 1, 1, 0), None, ReadingReport(0, 1, 2, 0)])
    assert now.hand_out((4, 4, 4)) == [[Piece(3)], [], []]


def test_a_pass_ends_with_slots_that_are_empty_from_the_start():
    now = ShardPass([], 3)
    now.see([ReadingReport(4, 1), None, None])
    assert now.take((4, 0, 0)) == (4, 0, 0)
    assert now.is_over
