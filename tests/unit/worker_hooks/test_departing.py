"""What a worker that has left says to the coordinator: nobody may count on it without knowing that it is gone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import pytest

from dynamix_ps.config.schema import Timeouts
from dynamix_ps.membership.messages import Freeze, Leave, Process, Resume, Status, Suspect
from dynamix_ps.rpc.access import ArbitratorAccess
from worker_hooks.membership.member import WorkerMember

ME, OTHER = Process("worker", 0, "a", "h:1"), Process("worker", 1, "b", "h:2")
FOUNDED = Resume(1, 0, frozenset(), frozenset(), founders=frozenset({ME, OTHER}))


class At(NamedTuple):
    first_incomplete: int


class Plane:
    """Sums that others need of this worker until it is over."""

    address = ""

    def __init__(self) -> None:
        self.at = 5
        self.expected: list[Mapping[int, str]] = []
        self.over: list[bool] = []

    def next_loss(self, timeout_s: float) -> None:
        return None

    def silent(self, quiet_s: float) -> frozenset[int]:
        return frozenset()

    def status(self) -> At:
        return At(self.at)

    freeze = status

    def meet(self, addresses: Mapping[int, str], leaving: Collection[int] = ()) -> None:
        self.addresses = {rank: address for rank, address in addresses.items() if rank not in leaving}

    def resume(self, generation: int, round_number: int, contributions: int, lost_servers: Collection[int]) -> None:
        assert len(self.addresses) == contributions

    def unanswered(self) -> frozenset[int]:
        return frozenset()

    def expect(self, contributions: int) -> None:
        assert len(self.addresses) == contributions
        self.expected.append(self.addresses)

    def enter(self, generation: int, round_number: int, contributions: int, lost_servers: Collection[int]) -> int:
        raise AssertionError

    def depart(self, over: Callable[[], bool]) -> bool:
        self.over.append(over())
        return not over()


class Said:
    """In the place of the stream."""

    def __init__(self) -> None:
        self.last: list[Any] = []

    def close(self, last: Any) -> None:
        self.last.append(last)


@pytest.fixture
def member() -> tuple[WorkerMember, Plane, Said]:
    access, plane, said = ArbitratorAccess("127.0.0.1:1", "r", "t", Timeouts()), Plane(), Said()
    one = WorkerMember(access, ME, plane, 2)
    one._member, one._watch = said, said  # type: ignore[assignment]
    said.join = lambda timeout: None  # type: ignore[attr-defined]
    one._act(FOUNDED)
    return one, plane, said


Made = tuple[WorkerMember, Plane, Said]


def test_those_that_stay_expect_each_other_and_who_leaves_expects_nobody(member: Made) -> None:
    one, plane, said = member
    one.others_left([1])
    assert plane.expected == [{0: "h:1"}]
    one.others_left([0])
    assert len(plane.expected) == 1
    one.close()
    one.close()
    assert (plane.over, said.last) == ([False], [Leave()]), "once"


def test_a_change_that_begins_later_goes_without_it(member: Made) -> None:
    one, plane, said = member
    one.others_left([0])
    assert one._act(Freeze(2)) == []
    one.close()
    assert (plane.over, said.last) == ([True], [Leave()])


def test_a_decision_that_is_repeated_on_a_new_connection_is_no_change(member: Made) -> None:
    """Others may still need what it passes on of its last round."""
    one, plane, said = member
    one.others_left([0])
    assert one._act(FOUNDED) == []
    one.close()
    assert (plane.over, said.last) == ([False], [Leave()])


def test_who_has_named_the_round_after_its_last_one_is_lost_so_that_all_hear_of_it(member: Made) -> None:
    one, plane, said = member
    assert one._act(Freeze(2)) == [Status(2, 5)]
    one.others_left([0])
    one.close()
    assert (plane.over, said.last) == ([True], [Suspect(ME)])


def test_a_round_after_that_decision_tells_all(member: Made) -> None:
    one, plane, said = member
    assert one._act(Freeze(2)) == [Status(2, 5)]
    plane.at = 6
    one.others_left([0])
    one.close()
    assert (plane.over, said.last) == ([False], [Leave()])
