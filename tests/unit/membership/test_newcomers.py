"""Whom newcomers follow, and who holds the vote for them back."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from dynamix_ps.membership.messages import Process
from worker_hooks.membership.newcomers import Newcomers

FIRST, SECOND, SERVER = Process("worker", 2, "b"), Process("worker", 3, "b"), Process("server", 1, "b")
OFFERED = {3: SECOND, 1: FIRST, 2: SERVER}


class Gives(NamedTuple):
    is_ready: bool


def newcomers(here: dict[Process, Gives] | None = None, elsewhere: tuple[Process, ...] = ()) -> Newcomers[Gives]:
    one: Newcomers[Gives] = Newcomers()
    one.here = here or {}
    one.take_over(elsewhere)
    return one


@pytest.mark.parametrize(
    ("one", "leads", "versions"),
    [
        (newcomers(), False, [1, 2, 3]),
        (newcomers(), True, []),
        (newcomers({FIRST: Gives(False)}), False, []),
        (newcomers({FIRST: Gives(True)}), True, [1, 2]),
        (newcomers({FIRST: Gives(True)}), False, [1, 2, 3]),
        (newcomers({SECOND: Gives(True)}, (FIRST,)), True, [1, 2, 3]),
        (newcomers({}, (SECOND,)), True, []),
    ],
)
def test_who_is_followed_decides_and_the_leader_for_those_that_follow_nobody(
    one: Newcomers[Gives], leads: bool, versions: list[int]
) -> None:
    assert list(one.may_be_voted_in(OFFERED, 0, leads)) == versions


@pytest.mark.parametrize("leads", [False, True])
def test_each_that_enters_gets_what_it_lacks_of_one_worker(leads: bool) -> None:
    """Of whom it follows, and of the leader if it follows nobody: whom it followed is gone."""
    third, gives = Process("worker", 4, "b"), Gives(True)
    one = newcomers({FIRST: gives}, (SECOND,))
    assert one.followed == [FIRST, SECOND]
    assert one.enter([FIRST, SECOND, third], leads) == {FIRST: gives, **({third: None} if leads else {})}
    assert one.followed == [], "they are in the sums"
