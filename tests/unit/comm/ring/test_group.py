"""Waiting for the other members of a ring prints nothing, however long it takes."""

from __future__ import annotations

import pytest

from dynamix_ps.comm.ring.group import Given, meet
from dynamix_ps.comm.ring.stores import open_store
from tests.rings import change, job, make

pytestmark = pytest.mark.timeout(60)
ABSENT = "127.0.0.1:1"


def test_who_waits_for_a_member_looks_again_and_again_and_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    _store, address = open_store("127.0.0.1")
    looks = iter(range(20))
    with pytest.raises(Given):
        meet("ring", 0, {0: address, 1: ABSENT}, over=lambda: next(looks, None) is None)
    assert capfd.readouterr() == ("", "")


def test_a_ring_is_finished_when_all_say_so_and_who_asks_before_prints_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with job(2) as members:
        change(1, members)
        make(members, 0)
        one, other = (group for member in members for group in member.ring.rounds.groups.values())
        capfd.readouterr()
        one.finish()
        assert not one.is_finished(0.01)
        other.finish()
        assert one.is_finished(10.0)
        assert capfd.readouterr() == ("", "")
