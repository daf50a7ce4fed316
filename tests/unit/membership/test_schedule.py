"""Who is planned for the rounds to come: it follows from what all workers of a sum say."""

from __future__ import annotations

from dynamix_ps.membership.messages import Process
from dynamix_ps.membership.schedule import Schedule, Trailer

W = [Process("worker", slot, "first") for slot in range(4)]
S = [Process("server", slot, "first") for slot in range(2)]
FOUNDED = Schedule.of_founders(frozenset([*W[:3], S[0]]), prefetch=1)


def test_a_process_enters_when_all_workers_of_the_sum_vote_for_it() -> None:
    entries = {1: W[3], 2: S[1]}
    some = FOUNDED.after({W[0]: Trailer(version=2), W[1]: Trailer(version=0), W[2]: Trailer(version=1)}, entries)
    assert (some.version, some.workers[-1], some.servers[-1]) == (0, frozenset(W[:3]), frozenset(S[:1]))
    following = some.after({W[0]: Trailer(version=2), W[1]: Trailer(version=1), W[2]: Trailer(version=2)}, entries)
    assert (following.version, following.workers[-1], following.servers[-1]) == (1, frozenset(W), frozenset(S[:1]))
    assert following.workers[0] == frozenset(W[:3]), "its round is the first one without data on their way"


def test_a_worker_leaves_by_its_vote_unless_nobody_would_stay() -> None:
    one = FOUNDED.after({W[0]: Trailer(leaving=True), W[1]: Trailer(), W[2]: Trailer()}, {})
    assert (one.workers, one.last) == ((frozenset(W[:3]), frozenset(W[1:3])), (frozenset(), frozenset(W[:1])))
    everyone = FOUNDED.after({worker: Trailer(leaving=True) for worker in W[:3]}, {})
    assert (everyone.workers[-1], everyone.last[-1]) == (frozenset(W[:3]), frozenset())


def test_a_worker_has_no_state_after_its_last_round() -> None:
    schedule = FOUNDED.after({W[0]: Trailer(leaving=True), W[1]: Trailer(), W[2]: Trailer()}, {})
    for _ in range(2):
        assert schedule.previous == frozenset(W[:3])
        schedule = schedule.after({worker: Trailer() for worker in W[:3]}, {})
    assert schedule.previous == frozenset(W[1:3])


def test_a_lost_worker_is_planned_for_what_is_on_its_way_alone_and_no_sum_waits_for_it() -> None:
    schedule = FOUNDED.after({W[0]: Trailer(), W[1]: Trailer()}, {})
    assert schedule.workers == (frozenset(W[:3]), frozenset(W[:2]))
    assert schedule.expected(frozenset(W[2:3])) == frozenset(W[:2])
