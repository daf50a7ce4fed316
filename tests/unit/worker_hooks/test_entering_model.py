"""What a model in training does for newcomers, and what one does that follows."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import asdict, replace
from functools import partial
from unittest.mock import MagicMock, Mock

import pytest

from dynamix_ps.errors import TrainingError
from dynamix_ps.membership.messages import Process
from dynamix_ps.messages import Plan
from tests.unit.worker_hooks.test_entering import HANDOVER
from worker_hooks.entering_model import EnteringModel
from worker_hooks.entries import Entries
from worker_hooks.session import Session

NEWCOMER, OTHER = Process("worker", 2, "w2b", "10.0.0.3:1"), Process("worker", 3, "w3b", "10.0.0.4:1")


@pytest.mark.parametrize("has_left", [False, True], ids=["it is gone", "whom it followed has left"])
def test_nobody_tries_to_reach_a_newcomer_that_has_followed_and_is_gone(has_left: bool) -> None:
    """The others would wait for that."""
    model, newcomer = Mock(_may_be_followed=True), Process("worker", 2, "w2b")
    giver = None if has_left else Mock(is_over=True)
    assert not EnteringModel._give(model, newcomer, giver, HANDOVER)
    model._session.is_gone.assert_called_once_with(newcomer)
    model._session.give_state.assert_not_called()


def test_who_a_decision_is_without_gets_no_state() -> None:
    """It was voted in, and nothing listens there any more."""
    model, there = Mock(_may_be_followed=False), Process("worker", 2, "b")
    assert not EnteringModel._give(model, NEWCOMER, None, HANDOVER)
    model._session.give_state.assert_not_called()
    assert EnteringModel._give(model, there, None, HANDOVER)
    model._session.give_state.assert_called_once_with(there, HANDOVER, model._write_state)


def test_who_follows_learns_the_plan_and_the_offers_behind_each_sum() -> None:
    """A sum has their numbers alone, and no coordinator tells it either in time."""
    plan, offered, giver = Plan(7, (4, 4, 0, 2)), {3: NEWCOMER, 5: OTHER}, Mock()
    leader = Mock(_sums_of_others=None, _givers={NEWCOMER: giver}, _offered=offered, _switch=Mock(held=plan))
    EnteringModel._tell_followers(leader)
    note = json.loads(json.dumps(giver.note.call_args.args[0]))
    follows = Mock(_sums_of_others=Mock(note=lambda: note))
    EnteringModel._tell_followers(follows)
    follows._switch.vote.assert_called_once_with(plan)
    assert follows._offered_to_others == offered


@pytest.mark.parametrize(("followed", "vote"), [(False, 1), (True, 0)], ids=["nobody follows", "it may follow"])
def test_where_nobody_follows_all_vote_at_once(followed: bool, vote: int) -> None:
    model = Mock(_may_be_followed=followed, _offered={1: NEWCOMER}, _takes_in=True, _entries=Entries())
    model._is_ready.return_value = False
    assert EnteringModel._entry_vote.fget(model) == vote  # type: ignore[attr-defined]


@pytest.mark.parametrize("leads", [False, True])
def test_the_one_that_leads_gives_the_state_and_nobody_else(leads: bool) -> None:
    model = Mock(_leads=leads, _givers={}, _followed=set(), _watch=MagicMock())
    model._session.take_in.return_value = HANDOVER.planned
    EnteringModel._take_in(model, 50, [NEWCOMER])
    model._session.take_in.assert_called_once_with([NEWCOMER])
    assert model._give.called is leads


def test_the_others_are_told_of_a_newcomer_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for it."""
    session = Mock()
    for given in (True, False):
        monkeypatch.setattr("worker_hooks.session.give", lambda *args, given=given: given)
        assert Session.give_state(session, NEWCOMER, HANDOVER, Mock()) is given
        assert session.is_gone.called is not given


def test_who_does_not_follow_begins_with_the_round_of_the_others() -> None:
    model = Mock(_exchange=Mock(present=[0, 2]), _givers={}, _followed=set(), _now=Mock(sum=None))
    model._comm.elastic.status.return_value.first_incomplete = 812
    handover = EnteringModel._hand_over(model, HANDOVER.planned)
    newcomer = Mock(_handover=replace(HANDOVER, round=handover.round, planned=handover.planned))
    EnteringModel._catch_up(newcomer)
    newcomer._session.begin.assert_called_once_with(HANDOVER.planned, 812)


def leading(followed: set[Process]) -> Mock:
    """A worker that leads, and to which `NEWCOMER` is offered."""
    model = Mock(_leads=True, _may_be_followed=True, _takes_in=True, _givers={}, _followed=followed)
    model._now.sum.batches, model._entries.version = 1, 0
    model._session.offered.return_value = {1: NEWCOMER}
    return model


@pytest.mark.parametrize("elsewhere", [False, True])
def test_who_follows_another_one_already_gets_no_second_copy_and_is_not_held_up(elsewhere: bool) -> None:
    """A worker that enters may lead from then on."""
    model = leading({NEWCOMER} if elsewhere else set())
    assert EnteringModel._is_ready(model, 1, NEWCOMER) is elsewhere
    EnteringModel._let_follow(model)
    assert model._give_copy.called is not elsewhere


def entering(steps: int, sums: int) -> Mock:
    """A newcomer that has followed so far, and enters."""
    told = io.BytesIO()
    replace(HANDOVER, followed=[asdict(OTHER)]).write(told)
    told.seek(0)
    model = Mock(_steps=steps, _sums=sums, rank=2)
    model._switch.plan_at.return_value = Plan(7, (4, 4, 2, 0))
    try:
        EnteringModel._enter(model, Mock(entry=lambda: told), 50)
    except TrainingError as error:
        model.error = str(error)
    return model


def test_who_enters_is_in_the_sums_and_knows_who_follows_another_one() -> None:
    model = entering(HANDOVER.steps, HANDOVER.sums_made)
    assert model._sums_of_others is None and model._followed == {OTHER}
    model._comm.follow.assert_called_once_with(None)
    model._session.begin.assert_called_once_with(HANDOVER.planned, HANDOVER.round)
    assert model._session.entered.call_args.args[:2] == ((2,), 50)


@pytest.mark.parametrize(("steps", "sums"), [(-1, 0), (0, 1)], ids=["a step less", "a sum more"])
def test_who_has_not_done_the_same_does_not_enter(steps: int, sums: int) -> None:
    model = entering(HANDOVER.steps + steps, HANDOVER.sums_made + sums)
    assert "where they made 800 and 810" in model.error
    model._session.begin.assert_not_called()


def test_who_has_another_cluster_file_is_refused_before_it_takes_the_state() -> None:
    arrival = Mock(handover=HANDOVER, or_closed=contextlib.nullcontext)
    model = Mock(framework="torch", rank=2)
    model._settings.shared = {**HANDOVER.settings, "window": "20"}
    model._session.arrive.return_value = arrival
    model._compare = partial(EnteringModel._compare, model)
    with pytest.raises(TrainingError, match="differ in window: 50 on worker 0, 20 on worker 2; start all"):
        EnteringModel._arrive(model)
    model._receive_state.assert_not_called()


def test_who_comes_late_and_knows_no_arbitrator_says_why() -> None:
    session = Mock(settings=Mock(arbitrator=None, mode="off"))
    with pytest.raises(TrainingError, match="knows no arbitrator: its cluster file has mode: off, or DYNAMIX_ARBIT"):
        Session.arrive(session)
