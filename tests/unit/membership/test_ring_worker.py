"""The rules of a worker's rounds over a ring, each with events written by hand."""

from __future__ import annotations

import pytest

from dynamix_ps.membership.ring_worker import (
    Meet,
    Ring,
    RingWorker,
    SpreadKept,
    StartSum,
)

ADDRESS = {rank: f"host-{rank}:1" for rank in range(4)}


def ring(generation: int, first_round: int, *ranks: int) -> Ring:
    return Ring(generation, first_round, tuple((rank, ADDRESS[rank]) for rank in ranks))


FIRST = Ring(0, 0, ((0, ""), (1, ""), (2, "")))


def meet(worker: RingWorker, *ranks: int, leaving: tuple[int, ...] = ()) -> None:
    worker.meet({rank: ADDRESS[rank] for rank in reversed(ranks)}, leaving)


def make_round(worker: RingWorker, parts: int = 2) -> None:
    """Push, sum and complete a round in the ring that is there."""
    assert worker.ring is not None
    for _ in range(parts):
        worker.push()
    for part in range(parts):
        worker.summed(worker.ring, part)
    worker.complete()


def decided(
    generation: int = 1, round_number: int = 0, made: int = 0, ranks: tuple[int, ...] = (0, 1, 2)
) -> RingWorker:
    """Worker 0 has made so many rounds in the first ring, and hears of a decision on these workers."""
    worker = RingWorker(0, FIRST)
    for _ in range(made):
        make_round(worker)
    worker.freeze()
    meet(worker, *ranks)
    worker.resume(generation, round_number, len(ranks), ())
    return worker


def in_ring(made: int = 0) -> RingWorker:
    """Worker 0 is in a ring of generation 1, with workers 1 and 2, before this round."""
    worker = decided(round_number=made, made=made)
    worker.met(ring(1, made, 0, 1, 2), [made] * 3)
    assert worker.ring == ring(1, made, 0, 1, 2)
    return worker


def test_a_round_is_complete_when_all_its_parts_are_summed() -> None:
    worker = RingWorker(0, FIRST)
    assert worker.push() == (0, [StartSum(FIRST, 0)]) and worker.push() == (1, [StartSum(FIRST, 1)])
    worker.summed(FIRST, 1)
    assert worker.next_part() == 0 and not worker.is_complete(0)
    worker.summed(FIRST, 0)
    assert worker.next_part() is None and worker.status().first_incomplete == 0, "nobody has taken it"
    worker.complete()
    assert worker.is_complete(1) and worker.status().first_incomplete == 1
    handle, effects = worker.push()
    assert effects == [StartSum(FIRST, 0)] and not worker.is_complete(handle)


def test_no_round_completes_after_it_was_named() -> None:
    """Also where all its sums are there, or come late."""
    worker = RingWorker(0, FIRST)
    worker.push()
    worker.push()
    worker.summed(FIRST, 0)
    progress = worker.freeze()
    assert progress.first_incomplete == 0
    worker.summed(FIRST, 1)
    assert worker.is_held and worker.next_part() == 0
    with pytest.raises(AssertionError):
        worker.complete()
    assert worker.freeze() == progress


def test_the_open_round_is_made_anew_with_those_that_are_left() -> None:
    worker = RingWorker(0, FIRST)
    worker.push()
    worker.summed(FIRST, 0)
    worker.freeze()
    handle, effects = worker.push()
    assert effects == [], "there is no ring"
    meet(worker, 0, 2)
    second = ring(1, 0, 0, 2)
    assert worker.resume(1, 0, 2, ()) == [Meet(second)]
    assert worker.is_held
    assert worker.met(second, [0, 0]) == [StartSum(second, 0), StartSum(second, 1)]
    worker.summed(FIRST, 1)
    assert worker.next_part() == 0
    for part in (0, 1):
        worker.summed(second, part)
    worker.complete()
    assert worker.is_complete(handle)


@pytest.mark.parametrize(("generation", "first_round"), [(1, 1), (2, 0), (2, 3)])
def test_a_decision_is_refused_that_is_old_or_of_another_round(generation: int, first_round: int) -> None:
    worker = in_ring(made=1)
    found = worker.ring
    with pytest.raises(ValueError, match=f"generation {generation} at round {first_round}: this worker is at round 1,"):
        worker.resume(generation, first_round, 3, ())
    assert worker.ring == found


def test_who_is_behind_takes_the_sums_of_the_lowest_that_has_them() -> None:
    worker = RingWorker(0, FIRST)
    worker.push()
    worker.push()
    worker.freeze()
    meet(worker, 0, 1, 2)
    worker.resume(1, 1, 3, ())
    now = ring(1, 1, 0, 1, 2)
    assert worker.met(now, [0, 1, 1]) == [SpreadKept(now, sender=1, receives=True)]
    assert worker.is_held and worker.next_part() == 0
    assert worker.spread(now) == []
    assert worker.next_part() is None
    worker.complete()
    assert worker.push()[1] == [StartSum(now, 0)]


def test_sums_that_come_in_a_ring_that_was_given_up_do_not_count() -> None:
    worker = RingWorker(0, FIRST)
    worker.push()
    worker.freeze()
    meet(worker, 0, 1, 2)
    worker.resume(1, 1, 3, ())
    now = ring(1, 1, 0, 1, 2)
    worker.met(now, [0, 1, 1])
    worker.freeze()
    assert worker.spread(now) == [] and worker.is_held and worker.next_part() == 0


def test_one_that_leaves_is_there_until_all_have_its_last_round() -> None:
    worker = in_ring()
    make_round(worker)
    now = ring(1, 0, 0, 1, 2)
    worker.finished(now)
    assert not worker.departed, "it has not said so itself"
    worker.depart()
    assert worker.released == now and not worker.departed
    worker.finished(FIRST)
    assert not worker.departed
    worker.finished(now)
    assert worker.departed
