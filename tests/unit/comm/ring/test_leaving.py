"""Workers leave a ring with a round, and the others go on: real rings over gloo, whose members are in one process."""

from __future__ import annotations

import threading

import pytest

from dynamix_ps.comm.ring.group import RingGroup
from tests.rings import PATIENCE_S, change, expect, job, make

pytestmark = pytest.mark.timeout(90)


def test_one_that_leaves_stays_until_all_have_its_last_round() -> None:
    with job() as (one, leaver, other):
        change(1, [one, leaver, other])
        make([one, leaver, other], 0)
        expect([one], [other])
        looks = iter([False, False, True])
        assert not leaver.ring.depart(lambda: next(looks)), "the other one may need it"
        expect([other])  # who is in the next ring makes no difference here
        assert leaver.ring.depart(lambda: False)


def test_a_worker_leaves_with_a_round_and_the_others_go_on() -> None:
    with job() as (leaver, one, other):
        change(1, [leaver, one, other])
        assert make([leaver, one, other], 0) == {111}
        expect([one, other])
        for member in (one, other):
            member.push(1)
        assert leaver.ring.depart(lambda: False)
        leaver.ring.close()
        assert one.wait() and other.wait() and (one.sum(), other.sum()) == (220, 220)
        assert make([one, other], 2) == {330}


def test_all_wait_for_each_other_at_the_end() -> None:
    with job(2) as (one, other):
        change(1, [one, other])
        make([one, other], 0)
        found: list[bool] = []
        first = threading.Thread(target=lambda: found.append(one.ring.depart(lambda: False)))
        first.start()
        assert other.ring.depart(lambda: False)
        first.join(PATIENCE_S)
        assert found == [True]


def test_where_the_one_with_the_store_is_gone_the_others_go_unless_they_are_in_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be lost, and some may need the sums of those that end."""
    with job(2) as (one, other):
        change(1, [one, other])
        make([one, other], 0)
        monkeypatch.setattr(RingGroup, "is_finished", lambda group, timeout_s: None)
        assert one.ring.depart(lambda: False)
        other.ring._worker.depart()
        other.ring.freeze()
        assert not other.ring.depart(iter([False, False, True]).__next__)
