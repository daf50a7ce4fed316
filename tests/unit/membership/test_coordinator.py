"""Who is lost and when, and what the coordinator does below its limits."""

from __future__ import annotations

from collections.abc import Sequence

from dynamix_ps.membership.coordinator import Coordinator
from dynamix_ps.membership.generations import MembershipSettings, Output
from dynamix_ps.membership.journal import Decided, Finished, Joined, Lost
from dynamix_ps.membership.messages import (
    AskLeave,
    Broken,
    Ended,
    Finish,
    Freeze,
    Join,
    Leave,
    LeaveAsked,
    Process,
    Refused,
    Resume,
    Status,
    Suspect,
    ToCoordinator,
    Waiting,
)

W = [Process("worker", slot, "first") for slot in range(4)]
S = [Process("server", slot, "first") for slot in range(2)]
LAUNCHER = Process("launcher", 0, "")


def started(min_workers: int = 1, max_workers: int = 8) -> Coordinator:
    """Three workers and two servers, at round 0 of generation 1."""
    settings = MembershipSettings(3, 2, min_workers, max_workers, confirm_s=0.5, lease_s=2.0, join_wait_s=10.0)
    coordinator = Coordinator(settings)
    for process in (*W[:3], *S):
        coordinator.on_message(process, Join(), 0.0)
    decide(coordinator, [None, None, None])
    return coordinator


def decide(coordinator: Coordinator, rounds: list[int | None], now_s: float = 0.0) -> Output:
    generation = coordinator.members.generation
    outputs = [
        coordinator.on_message(worker, Status(generation, named), now_s)
        for worker, named in zip(sorted(coordinator.members.workers), rounds, strict=True)
    ]
    return outputs[-1]


def lost(output: Output) -> list[Process]:
    return [record.process for record in output.records if isinstance(record, Lost)]


def lost_until(coordinator: Coordinator, end_s: float, heard: Sequence[Process]) -> list[Process]:
    """Who is lost while time passes and only some are heard."""
    found: list[Process] = []
    for tick in range(2 * int(end_s) - 6, 2 * int(end_s) + 2):
        for process in heard:
            coordinator.heard(process, tick / 2)
        found += lost(coordinator.on_time(tick / 2))
    return found


def told(output: Output, kind: type[object]) -> list[Process]:
    return [receiver for receiver, message in output.messages if isinstance(message, kind)]


def say(coordinator: Coordinator, sender: Process, message: ToCoordinator, now_s: float = 0.0) -> Output:
    return coordinator.on_message(sender, message, now_s)


def test_an_exit_and_two_witnesses_are_believed_at_once() -> None:
    assert lost(say(started(), LAUNCHER, Suspect(W[1]))) == [W[1]]
    coordinator = started()
    assert lost(say(coordinator, S[0], Suspect(W[1]))) == []
    assert lost(say(coordinator, S[0], Suspect(W[1]))) == []
    assert lost(say(coordinator, S[1], Suspect(W[1]))) == [W[1]]


def test_one_witness_is_believed_after_half_a_second() -> None:
    coordinator = started()
    say(coordinator, S[0], Suspect(W[1]))
    assert lost(coordinator.on_time(0.4)) == []
    (record,) = (one for one in coordinator.on_time(0.5).records if isinstance(one, Lost))
    assert (record.process, record.reason) == (W[1], "its connection to server 0 (first) closed")


def test_of_a_worker_and_a_server_that_accuse_each_other_the_worker_is_lost() -> None:
    coordinator = started()
    say(coordinator, W[1], Suspect(S[0]), 0.0)
    say(coordinator, S[0], Suspect(W[1]), 0.3)
    assert lost(coordinator.on_time(0.6)) == []
    assert lost(coordinator.on_time(0.9)) == [W[1]]
    assert lost(coordinator.on_time(1.5)) == []


def test_silence_evicts_nobody_for_whom_nobody_waits() -> None:
    coordinator = started()
    assert lost_until(coordinator, 10.0, heard=(W[0], W[2], *S)) == []
    say(coordinator, S[0], Waiting(frozenset({W[1]})), 10.0)
    assert lost_until(coordinator, 13.0, heard=(W[0], W[2], *S)) == [W[1]]


def test_a_silent_server_is_lost_if_a_worker_waits_for_it_and_another_one_is_left() -> None:
    coordinator = started()
    assert lost_until(coordinator, 10.0, heard=(*W[:3], S[1])) == []
    say(coordinator, W[0], Waiting(frozenset({S[0]})), 10.0)
    assert lost_until(coordinator, 13.0, heard=(*W[:3], S[1])) == [S[0]]
    say(coordinator, W[0], Waiting(frozenset({S[1]})), 13.0)
    assert lost_until(coordinator, 30.0, heard=W[:3]) == [], "nobody could make the sums of the last one"
    assert lost(say(coordinator, LAUNCHER, Suspect(S[1]))) == [S[1]]


def test_a_coordinator_that_was_stopped_itself_evicts_nobody() -> None:
    coordinator = started()
    say(coordinator, S[0], Waiting(frozenset({W[1]})), 0.0)
    assert lost(coordinator.on_time(100.0)) == []
    assert lost_until(coordinator, 100.5, heard=()) == []
    assert lost_until(coordinator, 103.0, heard=(W[0], W[2], *S)) == [W[1]]


def test_all_make_another_ring_where_the_newest_has_failed() -> None:
    assert not say(Coordinator(MembershipSettings(3, 0)), W[0], Broken(0)).records, "the members have not met"
    coordinator = started()
    assert told(say(coordinator, W[1], Broken(1)), Freeze) == W[:3]
    assert not say(coordinator, W[0], Broken(1)).messages, "once"


def test_a_change_goes_through_freeze_and_resume() -> None:
    coordinator = started()
    began = say(coordinator, LAUNCHER, Suspect(W[2]))
    assert [type(record).__name__ for record in began.records] == ["Lost", "Began"]
    assert told(began, Freeze) == W[:2]
    assert told(say(coordinator, W[0], Status(2, 4)), Resume) == []
    assert told(say(coordinator, W[1], Status(1, 9)), Resume) == []  # of an older change
    decided = say(coordinator, W[1], Status(2, 5))
    assert [type(record).__name__ for record in decided.records] == ["Decided"]
    assert [receiver for receiver, _ in decided.messages] == W[:2]
    assert decided.messages[0][1] == Resume(2, 5, frozenset({W[2]}), frozenset(), frozenset((*W[:3], *S)))


def test_a_new_incarnation_is_proof_that_the_one_before_is_lost() -> None:
    coordinator = started()
    output = say(coordinator, Process("worker", 2, "second"), Join())
    assert lost(output) == [W[2]]


def test_who_knows_a_slot_alone_does_not_mean_a_newcomer_in_it() -> None:
    coordinator = started()
    say(coordinator, Process("server", 0, "second"), Join())
    say(coordinator, W[0], Suspect(Process("server", 0, "")))
    assert lost(coordinator.on_time(1.0)) == []
    say(coordinator, W[0], Suspect(Process("server", 1, "")), 1.0)
    assert lost(coordinator.on_time(2.0)) == [S[1]]


def test_a_slot_beyond_the_last_is_refused() -> None:
    output = say(started(max_workers=3), W[3], Join())
    assert told(output, Refused) == [W[3]]
    assert not any(isinstance(record, Joined) for record in output.records)


def test_below_min_workers_those_that_are_left_make_the_rounds_at_hand_and_end_when_nobody_joins() -> None:
    coordinator = started(min_workers=3)
    say(coordinator, LAUNCHER, Suspect(W[2]))
    for worker in W[:2]:
        say(coordinator, worker, Status(2, 1))
    assert coordinator.on_time(9.9).messages == [] and coordinator.short_of_workers
    output = coordinator.on_time(12.0)
    assert output.messages[:2] == [
        (worker, Finish("2 workers are left, elastic.min_workers is 3, and none came within 10 s")) for worker in W[:2]
    ], "they hear it before they resume"
    assert told(output, Resume) == W[:2] and coordinator.finish is not None
    assert told(say(coordinator, W[1], Join(), 12.0), Finish) == [W[1]], "its connection was made anew"
    assert [type(record) for record in output.records] == [Decided]


def test_without_a_server_it_ends_when_none_joins() -> None:
    coordinator = started()
    for server in S:
        say(coordinator, LAUNCHER, Suspect(server))
    for worker in W[:3]:
        say(coordinator, worker, Status(coordinator.members.generation, 1))
    assert coordinator.on_time(9.9).messages == [] and not coordinator.short_of_workers
    output = coordinator.on_time(12.0)
    assert [message for _, message in output.messages] == [Ended("no server is left, and none came within 10 s")] * 3
    assert [type(record) for record in output.records] == [Finished]


def test_who_leaves_is_not_lost() -> None:
    coordinator = started()
    say(coordinator, W[2], Leave())
    assert lost(say(coordinator, LAUNCHER, Suspect(W[2]))) == []
    assert coordinator.change is None


def test_a_newcomer_does_not_wait_where_all_others_leave_also_in_a_change() -> None:
    coordinator = started()
    say(coordinator, LAUNCHER, Suspect(W[0]))
    say(coordinator, W[3], Join())
    outputs = [say(coordinator, worker, Leave()) for worker in W[1:3]]
    assert W[3] in told(outputs[-1], Ended)


def test_a_request_to_leave_is_told_again_to_a_member_that_says_hello_again() -> None:
    """Its connection may have been closed when the request came."""
    coordinator = started()
    say(coordinator, LAUNCHER, AskLeave(W[1], 2))
    assert told(say(coordinator, W[1], Join()), LeaveAsked) == [W[1]]
    assert told(say(coordinator, W[2], Join()), LeaveAsked) == []
    for number in (2, 1):  # told again by the launcher
        assert told(say(coordinator, LAUNCHER, AskLeave(W[1], number)), LeaveAsked) == []
    assert told(say(coordinator, LAUNCHER, AskLeave(W[1], 3)), LeaveAsked) == [W[1]], "the first was refused"
    say(coordinator, W[1], Leave())
    assert told(say(coordinator, W[1], Join()), LeaveAsked) == []
