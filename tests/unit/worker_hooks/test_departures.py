"""Workers leave by votes in the sums: enough stay, and each takes part once more with nothing."""

from __future__ import annotations

from worker_hooks.membership.departures import Departures


def test_who_votes_is_empty_from_the_first_iteration_that_is_not_prepared_and_is_gone_after_it() -> None:
    votes = Departures(least=2)
    assert votes.decide(9, (0, 1, 2, 3), (2,)) == [2]
    assert votes.decide(10, (0, 1, 2, 3), (2,)) == [], "it votes until it is gone, and was counted"
    assert votes.refusal == ""
    assert votes.staying((0, 1, 2, 3)) == [0, 1, 3]
    assert votes.gone_after(8, (0, 1, 2, 3)) == []
    assert votes.gone_after(9, (0, 1, 2, 3)) == [2]


def test_a_sum_of_several_batches_is_the_last_one_only_if_it_has_none_with_samples_of_who_leaves() -> None:
    votes = Departures(least=1)
    votes.decide(9, (0, 1), (1,))
    assert votes.gone_after(7, (0, 1)) == [], "of batches 7, 8 and 9"
    assert votes.gone_after(10, (0, 1)) == [1]
    assert votes.gone_after(10, (0,)) == [], "it is lost meanwhile"


def test_no_vote_counts_where_too_few_would_stay() -> None:
    votes = Departures(least=2)
    assert votes.decide(5, (0, 1, 2), (1, 2)) == []
    assert votes.refusal == ("workers 1, 2 cannot leave: 1 of 3 workers would stay, and elastic.min_workers is 2")
    assert votes.decide(6, (0, 1, 2), ()) == []
    assert votes.refusal == "", "of the newest sum alone"
    assert votes.decide(7, (0, 1, 2), (2,)) == [2]
    assert votes.decide(8, (0, 1, 2), (1, 2)) == [], "who leaves already does not stay"
    assert votes.refusal.startswith("worker 1 cannot leave: 1 of 3")
