"""Processes of a job tell each other things through a store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from benchmarks.testbed.ports import free_port
from dynamix_ps.errors import ConfigError, EnvironmentNotReady, TimedOut, UsageError
from dynamix_ps.other_launchers.meeting import Meeting
from dynamix_ps.other_launchers.place import MeetingPlace

LIMIT_S = 20.0


def places(size: int) -> list[MeetingPlace]:
    """Of the processes of a job whose rank 0 hosts the store."""
    port = free_port()
    return [MeetingPlace("torchrun", rank, size, "127.0.0.1", port) for rank in range(size)]


def test_all_hear_what_each_says() -> None:
    def work(place: MeetingPlace) -> tuple[Meeting, list[int], str]:
        meeting = Meeting(place, LIMIT_S)
        meeting.say("number", place.rank * 10)
        numbers = meeting.said_by_all("number")
        if place.rank == 0:
            meeting.say("answer", "yes")
        return meeting, numbers, meeting.said_by("answer", 0)

    with ThreadPoolExecutor(3) as pool:
        told = list(pool.map(work, places(3)))
    assert [(numbers, answer) for _, numbers, answer in told] == [([0, 10, 20], "yes")] * 3


def test_what_rank_0_refuses_is_raised_by_all() -> None:
    def work(place: MeetingPlace) -> None:
        meeting = Meeting(place, LIMIT_S)
        if place.rank == 0:
            meeting.refuse(ConfigError("no such policy"))
        else:
            meeting.said_by("run", 0)

    with ThreadPoolExecutor(3) as pool:
        first, *others = [pool.submit(work, place) for place in places(3)]
    assert first.exception() is None
    for other in others:
        assert isinstance(other.exception(), ConfigError)
        assert str(other.exception()) == "no such policy"


def test_who_does_not_come_is_named() -> None:
    first, *_ = places(3)
    meeting = Meeting(first, 0.2)
    meeting.say("number", 0)
    with pytest.raises(TimedOut, match=r"for rank 1, 2; torchrun started 3 processes"):
        meeting.said_by_all("number")
    with pytest.raises(TimedOut, match=r"for rank 0, which is to listen on 127\.0\.0\.1:"):
        Meeting(replace(first, rank=1, port=free_port()), 0.2)


def test_a_rank_is_one_process() -> None:
    first, *_ = places(1)
    meeting = Meeting(first, LIMIT_S)
    meeting.claim("process 1")
    with pytest.raises(UsageError, match=r"as rank 0 already, .* this one \(process 2\)"):
        meeting.claim("process 2")


def test_a_port_that_is_taken_is_named() -> None:
    first, *_ = places(1)
    meeting = Meeting(first, LIMIT_S)
    with pytest.raises(EnvironmentNotReady, match=r"cannot listen on 127.0.0.1:\d+, beside MASTER_PORT"):
        Meeting(first, LIMIT_S)
    del meeting
