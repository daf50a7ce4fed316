"""What a server does in changes of membership: events in, effects out."""

from __future__ import annotations

from dynamix_ps.membership.effects import GoAway, Tell
from dynamix_ps.membership.messages import Ended, Process, Refused, Suspect
from dynamix_ps.membership.server import Server


def test_it_ends_when_the_others_go_on_without_it() -> None:
    server = Server()
    assert server.on_message(Refused(2, "replaced")) == [GoAway("replaced")]
    assert server.on_message(Ended("the job is over")) == [], "its workers leave it"


def test_before_it_knows_who_is_there_it_names_the_slot_alone_and_once() -> None:
    assert Server().on_closed(2) == [Tell(Suspect(Process("worker", 2, "")))]
