"""What a worker does in changes of membership: events in, effects out."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from dynamix_ps.membership.effects import GoAway, Tell
from dynamix_ps.membership.known_members import Planned
from dynamix_ps.membership.messages import (
    Ended,
    Enter,
    Entry,
    Finish,
    Freeze,
    LeaveAsked,
    Process,
    Refused,
    Resume,
    Suspect,
)
from dynamix_ps.membership.worker import Worker
from tests.unit.membership.sums import NotedSums

W = [Process("worker", slot, "first", f"h:{slot}") for slot in range(4)]
S = [Process("server", slot, "first") for slot in range(3)]
ME = W[0]
AGAIN = {process: Process(process.role, process.slot, "second") for process in (*W, *S)}  # others in their places
MUST_COME_AGAIN = "must be started again"


def decision(generation: int, first_round: int, gone: Collection[Process] = ()) -> Resume:
    return Resume(generation, first_round, frozenset(gone), founders=frozenset((*W, *S)))


@pytest.fixture
def sums() -> NotedSums:
    return NotedSums()


@pytest.fixture
def worker(sums: NotedSums) -> Worker:
    """In round 5 of generation 1."""
    one = Worker(ME, sums, len(W))
    one.on_message(decision(1, 0), 0.0)
    sums.told.clear()
    return one


@pytest.fixture
def late(sums: NotedSums) -> Worker:
    """One in the place of worker 3, which has heard of generation 1."""
    one = Worker(AGAIN[W[3]], sums, len(W), late=True)
    one.on_message(decision(1, 0), 0.0)
    return one


def hear(worker: Worker, *messages: Any) -> list[Any]:
    return [effect for message in messages for effect in worker.on_message(message, 0.0)]


# Losses.


def test_it_ends_without_a_server_that_all_have_met(worker: Worker, sums: NotedSums) -> None:
    hear(worker, Enter(Entry(1, AGAIN[S[1]])))
    assert hear(worker, decision(2, 5, S)) == [GoAway("no server is left that has met all workers")]
    assert sums.told == []


def test_who_lacks_a_sum_that_only_a_lost_server_had_ends_when_nothing_is_on_its_way(
    worker: Worker, sums: NotedSums
) -> None:
    sums.lacks = frozenset({0, 1})
    assert worker.on_time(100.0) == [], "none is lost"
    worker.on_message(decision(2, 5, [S[1]]), 100.0)
    worker.on_message(decision(3, 5, [S[1], W[3]]), 100.5)
    assert worker.on_time(100.9) == []
    assert worker.on_time(101.1) == [GoAway("it lacks part of a sum that only server 1 had, which is lost")]
    sums.lacks = frozenset({0})
    assert worker.on_time(101.1) == []


def test_a_connection_that_closes_names_who_was_there(worker: Worker) -> None:
    assert worker.on_closed("server", 1) == [Tell(Suspect(S[1]), keep=True)]
    worker.met(AGAIN[S[1]])
    assert worker.on_closed("server", 1) == [Tell(Suspect(AGAIN[S[1]]), keep=True)]
    assert worker.on_closed("server", 7) == [Tell(Suspect(Process("server", 7, "")))], "told once"
    assert worker.on_closed("worker", 2) == [Tell(Suspect(W[2]), keep=True)]
    assert worker.on_closed("worker", 7) == worker.on_closed("scheduler", 0) == []


def test_it_waits_for_members_alone_and_for_one_that_leaves_and_is_in_the_ring_of_a_decision(worker: Worker) -> None:
    worker.others_left([3])
    hear(worker, decision(2, 5, [W[2], S[1]]))
    assert worker.waits_for({1, 2, 3}, {0, 1}) == {W[1], W[3], S[0]}


# Its own end.


def test_a_newcomer_that_has_not_entered_ends_without_a_word_or_a_checkpoint(late: Worker) -> None:
    """Nobody counts on it, and it has no state."""
    assert hear(late, Finish("too few are left")) == [GoAway("too few are left")]
    late.depart()
    assert late.last_word(departed=True) is None


def test_what_training_is_to_do_is_told_to_it(worker: Worker) -> None:
    assert hear(worker, Finish("too few are left")) == [Finish("too few are left")]
    assert hear(worker, LeaveAsked(1), LeaveAsked(1), LeaveAsked(2)) == [LeaveAsked(1), LeaveAsked(2)], "each once"
    assert hear(worker, Refused(2, "replaced"), Ended("over")) == [GoAway("replaced"), GoAway("over")]


# Who comes and who leaves.


def test_a_newcomer_does_not_begin_while_a_decision_is_under_way(late: Worker, sums: NotedSums) -> None:
    """It has named no round in it, so the others go on without it."""
    hear(late, Freeze(2))
    assert late.has_heard_of(2)
    (end,) = late.begin(Planned([ME, late.known.own], [], 1), 7)
    assert MUST_COME_AGAIN in end.reason and sums.told == []


def test_it_hears_nothing_that_ends_it_after_its_last_word(worker: Worker, sums: NotedSums) -> None:
    hear(worker, decision(2, 5, [S[1]]))
    worker.last_word(departed=True)
    sums.lacks = frozenset({1})
    assert hear(worker, Refused(2, "replaced"), Ended("over")) == worker.on_time(9.0) == []
