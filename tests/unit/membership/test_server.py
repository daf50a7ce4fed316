"""What a server does in changes of membership: events in, effects out."""

from __future__ import annotations

from dynamix_ps.membership.effects import GoAway, Tell
from dynamix_ps.membership.messages import Ended, Fence, Fenced, Process, Refused, Suspect
from dynamix_ps.membership.server import Server
from tests.unit.membership.sums import NotedSums

W = [Process("worker", slot, "first") for slot in range(3)]
NOBODY: frozenset[Process] = frozenset()


def test_it_drops_sums_once_per_decision_and_confirms_each_time() -> None:
    sums = NotedSums()
    server = Server(sums)
    for fence in (
        Fence(2, 5, NOBODY, frozenset(W)),
        Fence(2, 5, NOBODY, frozenset(W[:2])),
        Fence(1, 0, NOBODY, NOBODY),
    ):
        assert server.on_message(fence) == [Tell(Fenced(fence.generation))]
    assert sums.told == [("fence", 2, 5)]


def test_it_ends_when_the_others_go_on_without_it() -> None:
    server = Server(NotedSums())
    assert server.on_message(Refused(2, "replaced")) == [GoAway("replaced")]
    assert server.on_message(Ended("the job is over")) == [], "its workers leave it"


def test_before_it_knows_who_is_there_it_names_the_slot_alone_and_once() -> None:
    assert Server(NotedSums()).on_closed(2) == [Tell(Suspect(Process("worker", 2, "")))]
