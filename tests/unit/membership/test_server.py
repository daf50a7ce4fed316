"""What a server refuses, drops and keeps."""

from __future__ import annotations

from dynamix_ps.membership.data_messages import Answer, Part, Push
from dynamix_ps.membership.messages import Fence, Process, Processes, Refused
from dynamix_ps.membership.schedule import Trailer
from dynamix_ps.membership.server import Server

W = [Process("worker", slot, "first") for slot in range(2)]
BOTH, NOBODY = frozenset(W), frozenset[Process]()


def fenced(generation: int = 1, first_round: int = 0, gone: Processes = NOBODY) -> Fence:
    return Fence(generation, first_round, gone, BOTH - gone)


def push(round_: int, generation: int = 1, expected: int = 2) -> Push:
    return Push(generation, round_, 0, expected, Part(Trailer(), "gradient"))


def test_a_lost_worker_is_refused() -> None:
    server = Server(Process("server", 0, "first"))
    server.on_message(W[0], fenced(gone=frozenset({W[1]})))
    assert isinstance(server.on_message(W[1], push(0))[0][1], Refused)


def test_the_last_push_of_a_worker_that_has_left_counts_though_the_server_knows_that_it_left() -> None:
    server = Server(Process("server", 0, "first"))
    server.on_message(W[0], fenced())
    server.on_message(W[0], push(3))
    server.on_message(W[0], fenced(gone=frozenset({W[1]})))  # again, in the same generation: somebody has come
    assert [type(message) for _, message in server.on_message(W[1], push(3))] == [Answer, Answer]


def test_a_fence_drops_what_is_made_anew_and_keeps_the_round_before() -> None:
    server = Server(Process("server", 0, "first"))
    server.on_message(W[0], fenced())
    for round_ in (2, 3):
        server.on_message(W[0], push(round_))
    server.on_message(W[1], push(2))
    server.on_message(W[0], fenced(2, 3, frozenset({W[1]})))
    assert [sum_.round for sum_ in server.sums.values()] == [2]
    assert server.on_message(W[0], push(3)) == []  # of the generation before
    assert [type(message) for _, message in server.on_message(W[0], push(3, 2, expected=1))] == [Answer]
