"""What a worker answers to messages of older generations: nothing, and it keeps what it has."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dynamix_ps.membership.data_messages import Answer, AskState, Caught, Copy, Push, Snapshot, Sum
from dynamix_ps.membership.messages import COORDINATOR, Enter, Entry, Freeze, Process, Processes, Ready, Resume, Status
from dynamix_ps.membership.round_in_flight import RoundInFlight
from dynamix_ps.membership.schedule import Schedule
from dynamix_ps.membership.worker import Worker

W = [Process("worker", slot, "first") for slot in range(4)]
S = [Process("server", slot, "first") for slot in range(2)]
FOUNDERS, NOBODY = frozenset(W[:3]), frozenset[Process]()


def worker(process: Process, state: Any = None) -> Worker:
    """With one key, on the first server that is there."""
    return Worker(process, lambda servers: {0: min(servers)}, lambda state, *_: state, lambda state: "gradient", state)


def founder() -> Worker:
    """In round 0 of generation 1."""
    one = worker(W[0], "begun")
    one.on_message(COORDINATOR, resume(1, 0))
    assert (one.generation, one.round, one.state) == (1, 0, "begun")
    return one


def resume(generation: int, first_round: int, gone: Processes = NOBODY) -> Resume:
    donor = W[1] if generation > 1 else None
    return Resume(generation, first_round, gone, frozenset(S) - gone, donor, founders=FOUNDERS)


def snapshot(generation: int, round_: int, state: str) -> Snapshot:
    return Snapshot(generation, round_, Schedule.of_founders(FOUNDERS, 0), state)


def test_a_newcomer_takes_no_state_of_an_older_generation() -> None:
    newcomer = worker(W[3])
    newcomer.on_message(COORDINATOR, resume(3, 5))
    assert newcomer.on_message(W[1], snapshot(2, 4, "old")) == []
    assert (newcomer.schedule, newcomer.state) == (None, None)
    assert newcomer.on_message(W[1], snapshot(3, 5, "new")) == [(COORDINATOR, Ready())]
    assert (newcomer.state, newcomer.round) == ("new", 5)


def test_a_state_that_comes_before_its_decision_waits_for_it_and_is_void_when_a_later_one_comes_first() -> None:
    in_time, too_old = worker(W[3]), worker(W[3])
    for newcomer in (in_time, too_old):
        assert newcomer.on_message(W[1], snapshot(2, 4, "early")) == []
        assert newcomer.schedule is None
    assert in_time.on_message(COORDINATOR, resume(2, 4)) == [(COORDINATOR, Ready())]
    assert (in_time.state, in_time.round) == ("early", 4)
    assert too_old.on_message(COORDINATOR, resume(3, 4)) == []
    assert too_old.schedule is None


def test_who_is_behind_and_asks_anew_takes_no_state_that_it_had_asked_for_before() -> None:
    behind = founder()
    behind.push()
    behind.on_message(COORDINATOR, Freeze(2))
    gone = frozenset({S[0]})
    assert behind.on_message(COORDINATOR, resume(2, 1, gone)) == [(W[1], AskState(2, 1))]
    behind.on_message(COORDINATOR, Freeze(3))
    assert behind.on_message(W[1], snapshot(2, 1, "while it is asked")) == []
    assert behind.on_message(COORDINATOR, resume(3, 1, gone | {W[2]})) == [(W[1], AskState(3, 1))]
    assert behind.on_message(W[1], snapshot(2, 1, "old")) == []
    assert (behind.state, behind.round) == ("begun", 0)
    behind.on_message(W[1], snapshot(3, 1, "new"))
    assert (behind.state, behind.round) == ("new", 1)


def test_a_freeze_is_answered_again_until_its_decision_and_never_after() -> None:
    one = founder()
    assert one.on_message(COORDINATOR, Freeze(1)) == [] and not one.frozen
    for _ in range(2):  # the first answer may be lost with a connection
        assert one.on_message(COORDINATOR, Freeze(2)) == [(COORDINATOR, Status(2, 0))] and one.frozen
    one.on_message(COORDINATOR, resume(2, 0))
    for generation in (1, 2):
        assert one.on_message(COORDINATOR, Freeze(generation)) == [] and not one.frozen


def test_a_round_that_is_made_anew_counts_no_earlier_answer() -> None:
    one = RoundInFlight(0, 1, {0: S[0], 1: S[1]}, pushed=2)
    for key in one.places:
        one.take(Answer(1, 0, key, Sum(1, 0, expected=3)))
    assert one.complete
    one.anew(2, {0: S[0], 1: S[0]})
    assert not one.complete and one.unanswered() == {S[0]}


@pytest.mark.parametrize("caught_up", [False, True])
def test_whom_a_newcomer_follows_votes_for_it_once_it_has_caught_up(caught_up: bool) -> None:
    one = worker(W[0])
    one.on_message(COORDINATOR, Enter(Entry(1, W[3])))
    one.on_message(COORDINATOR, Resume(3, 5, NOBODY, frozenset(S), W[1]))
    schedule = dataclasses.replace(Schedule.of_founders(FOUNDERS, 0), previous=FOUNDERS)
    told = one.on_message(W[1], Snapshot(3, 5, schedule, "state"))
    assert told == [(COORDINATOR, Ready()), (W[3], Copy(3, 5, schedule, "state"))]
    if caught_up:
        one.on_message(W[3], Caught(4))
    ((_, push),) = one.push()
    assert isinstance(push, Push) and push.part.trailer.version == caught_up
