"""Sessions between clients and the arbitrator: who has not the token can neither call nor answer."""

from __future__ import annotations

import pytest

from dynamix_ps.rpc.refusals import RefusalError, UnknownSessionError, UnprovenCallError
from dynamix_ps.rpc.session import FIRST_CALL_S, ClientSession, Sessions
from dynamix_ps.token_proof import random_number

TOKEN = "secret"


class Clock:
    now_s = 0.0

    def __call__(self) -> int:
        return int(self.now_s * 1e9)


def pair(limit: int = 10) -> tuple[ClientSession, Sessions, Clock]:
    clock = Clock()
    sessions = Sessions(TOKEN, limit, clock)
    return begun(sessions), sessions, clock


def begun(sessions: Sessions) -> ClientSession:
    own = random_number()
    return ClientSession(TOKEN, own, sessions.greeting(own))


def test_messages_go_both_ways_and_the_token_goes_nowhere() -> None:
    own, sessions = random_number(), Sessions(TOKEN, 10)
    reply = sessions.greeting(own)
    mine, told = ClientSession(TOKEN, own, reply).call("m")
    theirs = sessions.admit("m", told)
    said = [mine.seal(b"question"), mine.seal(b""), theirs.seal(b"answer")]
    assert [theirs.open(said[0]), theirs.open(said[1]), mine.open(said[2])] == [b"question", b"", b"answer"]
    assert TOKEN.encode() not in b"".join([own, reply, told, *said])


@pytest.mark.parametrize("reply", [b"", bytes(64), bytes(63)], ids=["nothing", "zeros", "short"])
def test_who_does_not_know_the_token_is_no_arbitrator(reply: bytes) -> None:
    with pytest.raises(UnprovenCallError, match="does not know the token"):
        ClientSession(TOKEN, random_number(), reply)


def test_the_greeting_of_an_arbitrator_with_another_token_or_for_another_client_is_refused() -> None:
    own = random_number()
    for reply in (Sessions("another", 10).greeting(own), Sessions(TOKEN, 10).greeting(random_number())):
        with pytest.raises(UnprovenCallError, match="does not know the token"):
            ClientSession(TOKEN, own, reply)


def test_what_was_recorded_cannot_be_said_again() -> None:
    client, sessions, _ = pair()
    mine, told = client.call("m")
    theirs = sessions.admit("m", told)
    question = mine.seal(b"question")
    for again in (lambda: sessions.admit("m", told), lambda: sessions.admit("other", client.call("m")[1])):
        with pytest.raises(UnprovenCallError):
            again()
    theirs.open(question)
    for wrong in (question, mine.seal(b"next")[:-1], b"", theirs.seal(b"an answer of its own")):
        with pytest.raises(UnprovenCallError):
            theirs.open(wrong)
    later, _ = client.call("m")
    with pytest.raises(UnprovenCallError):
        later.open(theirs.seal(b"an answer to an earlier call"))


def test_calls_may_overtake_each_other_and_count_once() -> None:
    client, sessions, _ = pair()
    told = [client.call("m")[1] for _ in range(5000)]
    for index in (3, 0, 2, 4000, 3999, 3500):
        sessions.admit("m", told[index])
    for index in (3, 0, 2, 1, 4000, 3999, 3500):  # 1 is too far behind the newest
        with pytest.raises(UnprovenCallError):
            sessions.admit("m", told[index])


def test_a_session_that_was_forgotten_begins_anew_and_its_calls_do_not_count_again() -> None:
    client, sessions, clock = pair(limit=2)
    first = client.call("m")[1]
    sessions.admit("m", first)
    clock.now_s = FIRST_CALL_S + 1
    for _ in range(2):
        sessions.admit("m", begun(sessions).call("m")[1])
    for told in (first, client.call("m")[1]):
        with pytest.raises(UnknownSessionError, match="greet again"):
            sessions.admit("m", told)


def test_a_greeting_takes_up_no_memory_and_counts_for_a_while() -> None:
    client, sessions, clock = pair()
    for _ in range(100):
        sessions.greeting(random_number())
    for wrong in (bytes(104), random_number() * 3 + bytes(8), b""):
        with pytest.raises(RefusalError):
            sessions.admit("m", wrong)
    assert len(sessions._known) == 0
    clock.now_s = FIRST_CALL_S + 1
    with pytest.raises(UnknownSessionError, match="greet again"):
        sessions.admit("m", client.call("m")[1])
    with pytest.raises(UnprovenCallError, match="32 random bytes"):
        sessions.greeting(bytes(31))


def test_sessions_of_an_earlier_arbitrator_are_not_known() -> None:
    client, _, _ = pair()
    with pytest.raises(UnknownSessionError, match="greet again"):
        Sessions(TOKEN, 10).admit("m", client.call("m")[1])
