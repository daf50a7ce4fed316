"""What a training does for newcomers, and what one does that follows."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest

from dynamix_ps.errors import PeerLostError, TrainingError
from dynamix_ps.membership.messages import Process
from dynamix_ps.messages import Plan
from tests.unit.worker_hooks.test_arrival import HANDOVER
from worker_hooks.ending import TrainingEnd
from worker_hooks.membership.member_process import MemberProcess
from worker_hooks.membership_changes import MembershipChanges
from worker_hooks.sampling.sampler import Cursor
from worker_hooks.saved.checkpoint import Position

NEWCOMER, OTHER = Process("worker", 2, "w2b", "10.0.0.3:1"), Process("worker", 3, "w3b", "10.0.0.4:1")
PLANNED = HANDOVER.planned


def neighbours(rank: int = 0, leads: bool = True, followed: bool = True) -> Any:
    """The other parts of a training. `followed`: newcomers may follow its sums."""
    training = MagicMock()
    training.session.workers.here = range(rank, rank + 1)
    training.session.account.trainings, training.plans.wire = 1, None
    training.session.settings.guards_rate, training.session.settings.config.elastic.min_workers = False, 1
    training.session.comm.sends_again = followed
    training.session.member.offered.return_value = {1: NEWCOMER}
    training.session.member.take_in.return_value = HANDOVER.planned
    training.adapter.framework = "torch"
    training.data.is_stream, training.data.loaders, training.replicas.layouts = False, 1, 0
    training.now.batches_due, training.now.sum = 1, None
    training.sums.leads, training.sums.made = leads, 0
    training.progress.steps = 0
    return training


def changes(training: Any, followed: set[Process] = frozenset()) -> MembershipChanges:  # type: ignore[assignment]
    """`followed`: newcomers that follow another worker."""
    part = MembershipChanges(training)
    part.begin_at()
    part.votes.newcomers.take_over(followed)
    return part


def test_nobody_tries_to_reach_a_newcomer_that_has_followed_and_is_gone() -> None:
    """The others would wait for that."""
    training = neighbours()
    assert not changes(training)._give(NEWCOMER, Mock(is_over=True), HANDOVER, PLANNED)
    training.session.member.is_gone.assert_called_once_with(NEWCOMER)
    training.session.member.give_state.assert_not_called()


@pytest.mark.parametrize(
    "followed", [False, True], ids=["all wait for it", "the one that was to let it follow is lost"]
)
def test_who_follows_nobody_gets_the_state_unless_a_decision_is_without_it(followed: bool) -> None:
    """It was voted in. Where a decision is without it, nothing listens there any more."""
    training, there = neighbours(followed=followed), Process("worker", 2, "b")
    part = changes(training)
    assert not part._give(NEWCOMER, None, HANDOVER, PLANNED)
    training.session.member.give_state.assert_not_called()
    assert part._give(there, None, HANDOVER, PLANNED)
    assert training.session.member.give_state.call_args.args[:2] == (there, HANDOVER)


def test_the_others_are_told_of_a_newcomer_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for it."""
    session = Mock()
    for given in (True, False):
        monkeypatch.setattr("worker_hooks.membership.member_process.give", lambda *args, given=given: given)
        assert MemberProcess.give_state(session, NEWCOMER, HANDOVER, Mock()) is given
        assert session.is_gone.called is not given


@pytest.mark.parametrize("elsewhere", [False, True])
def test_who_follows_another_one_already_gets_no_second_copy_and_is_not_held_up(elsewhere: bool) -> None:
    """A worker that enters may lead from then on."""
    training = neighbours()
    training.now.sum = Mock(batches=1)
    training.checkpoints.position.return_value = Position(0, Cursor(), Plan(0, (4,)), 0, 0)
    part = changes(training, {NEWCOMER} if elsewhere else set())
    assert part.entry_vote == (1 if elsewhere else 0)
    part.admit(1)
    assert training.session.member.let_follow.called is not elsewhere


def entering(steps: int, sums: int) -> tuple[Any, MembershipChanges]:
    """A newcomer that has followed so far, and is to enter in iteration 50."""
    told = replace(HANDOVER, followed=[asdict(OTHER)]).packed()
    training = neighbours(rank=2)
    training.progress.steps, training.sums.made, training.sums.follows = steps, sums, True
    training.plans.switch.plan_at.return_value = Plan(7, (4, 4, 2, 0))
    training.session.member.is_among.return_value = True
    part = changes(training)
    part._sums_of_others = Mock(told=lambda: told)
    part.votes.entries.decide(50, 1, {1: NEWCOMER})
    return training, part


@pytest.mark.parametrize(("steps", "sums"), [(-1, 0), (0, 1)], ids=["a step less", "a sum more"])
def test_who_has_not_done_the_same_does_not_enter(steps: int, sums: int) -> None:
    training, part = entering(HANDOVER.steps + steps, HANDOVER.sums_made + sums)
    with pytest.raises(TrainingError, match="where they made 800 and 810"):
        part.admit(50)
    training.session.member.begin.assert_not_called()


def test_who_has_another_cluster_file_is_refused_before_it_takes_the_state() -> None:
    training = neighbours(rank=2)
    training.session.settings.shared = {**HANDOVER.settings, "window": "20"}
    sums = training.session.member.arrive.return_value
    sums.told.return_value = HANDOVER.packed()
    with pytest.raises(TrainingError, match="differ in window: 50 on worker 0, 20 on worker 2; start all"):
        changes(training).arrive()
    training.adapter.state.receive.assert_not_called()
    sums.close.assert_called_once()  # who gives the state does not wait


@pytest.mark.parametrize("follows", [False, True])
def test_who_follows_has_met_all_servers_before_and_is_in_no_sum_yet(follows: bool) -> None:
    """Else all would wait for it in its first sum while a server does not answer it."""
    training = neighbours(rank=2)
    part = changes(training)
    part.votes = Mock()
    part._handover = replace(HANDOVER, follows=follows, newest=None)
    part.catch_up()
    member, comm = training.session.member, training.session.comm
    assert (member.meet.called, comm.follow.called, member.begin.called) == (follows, follows, not follows)


def test_who_comes_late_and_knows_no_arbitrator_says_why() -> None:
    session = Mock(_settings=Mock(arbitrator=None, config=Mock(mode="off")))
    with pytest.raises(TrainingError, match="knows no arbitrator: its cluster file has mode: off, or DYNAMIX_ARBIT"):
        MemberProcess.arrive(session)


def test_where_those_that_were_to_stay_are_lost_it_ends_with_an_error() -> None:
    training = neighbours(rank=2)
    training.plans.switch.lag, training.now.batch.iteration, training.now.first_due = 0, 5, 5
    part = changes(training)
    part.let_go(Mock(present=(0, 1, 2), leaving_ranks=(2,)))
    with pytest.raises(PeerLostError, match="worker 2 leave the job, and the workers that were to go on are lost"):
        part.let_go(Mock(present=(2,), leaving_ranks=(2,)))


@pytest.mark.parametrize(("ending", "ends"), [((0, 1), True), ((0,), False)])
def test_a_worker_that_leaves_ends_with_the_others_if_all_of_them_end(
    ending: tuple[int, ...], ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = Mock(requested=False, cause="", leaving=True)
    monkeypatch.setattr("worker_hooks.ending.TERMINATION", end)
    training = neighbours(rank=2, leads=False)
    training.session.comm.size, training.session.folder, training.sums.has_local = 3, None, False
    training.now.sum = Mock(view=Mock(present=(0, 1, 2), ending=True, ending_ranks=ending, saves=False))
    training.membership.votes.departures.staying.return_value = [0, 1]
    TrainingEnd(training).end_when_told()
    assert end.end.called is ends
