"""The rules of a worker's rounds over a ring, each with events written by hand. The model has the others."""

from __future__ import annotations

import pytest

from dynamix_ps.membership.ring_worker import Meet, Ring, RingWorker, SpreadKept, StartSum

ADDRESS = {rank: f"host-{rank}:1" for rank in range(3)}
FIRST = Ring(0, 0, ((0, ""), (1, ""), (2, "")))
NOW = Ring(1, 1, tuple(ADDRESS.items()))


def decided(made: int) -> RingWorker:
    """Worker 0 has pushed two parts after so many rounds, and hears of a decision: all make round 1."""
    worker = RingWorker(0, FIRST)
    for _ in range(made):
        worker.push()
        worker.summed(FIRST, 0)
        worker.complete()
    worker.push()
    worker.push()
    worker.summed(FIRST, 0)
    assert worker.freeze().first_incomplete == made
    worker.summed(FIRST, 1)
    assert worker.is_held and worker.next_part() == 0, "the round is named, so it does not complete"
    worker.meet(dict(reversed(ADDRESS.items())))
    assert worker.resume(1, 1, 3, ()) == [Meet(NOW)]
    return worker


def test_the_open_round_is_made_anew() -> None:
    worker = decided(made=1)
    assert worker.met(NOW, [1, 1, 1]) == [StartSum(NOW, 0), StartSum(NOW, 1)]
    for part in (1, 0):
        assert not worker.is_complete(1)
        worker.summed(NOW, part)
    worker.complete()
    assert worker.is_complete(2) and worker.push() == (3, [StartSum(NOW, 0)])


@pytest.mark.parametrize(("generation", "first_round"), [(1, 1), (2, 0), (2, 3)])
def test_a_decision_is_refused_that_is_old_or_of_another_round(generation: int, first_round: int) -> None:
    worker = decided(made=1)
    worker.met(NOW, [1, 1, 1])
    with pytest.raises(ValueError, match=f"generation {generation} at round {first_round}: this worker is at round 1,"):
        worker.resume(generation, first_round, 3, ())
    assert worker.ring == NOW


def test_who_is_behind_takes_the_sums_of_the_lowest_that_has_them() -> None:
    worker = decided(made=0)
    assert worker.met(NOW, [0, 1, 1]) == [SpreadKept(NOW, sender=1, receives=True)]
    assert worker.is_held and worker.next_part() == 0
    assert worker.spread(NOW) == []
    assert worker.next_part() is None
    worker.complete()
    assert worker.push()[1] == [StartSum(NOW, 0)]


def test_sums_that_come_in_a_ring_that_was_given_up_do_not_count() -> None:
    worker = decided(made=0)
    worker.met(NOW, [0, 1, 1])
    worker.freeze()
    assert worker.spread(NOW) == [] and worker.is_held and worker.next_part() == 0
