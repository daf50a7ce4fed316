"""Processes of a job meet in a store, and tell each other things."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from benchmarks.testbed.ports import free_port
from dynamix_ps.errors import ConfigError, EnvironmentNotReady, TimedOut, UsageError
from dynamix_ps.other_launchers.meeting import JobProcess, Meeting
from dynamix_ps.other_launchers.place import MeetingPlace

LIMIT_S = 20.0
NOBODY = 2**22 + 1  # no process has such a number


def process(rank: int, pid: int = NOBODY) -> JobProcess:
    return JobProcess(pid, "here", f"10.0.0.{rank}", "agent", "1")


def places(size: int) -> list[MeetingPlace]:
    """Of the processes of a job whose rank 0 hosts the store."""
    port = free_port()
    return [MeetingPlace("torchrun", rank, size, "127.0.0.1", port) for rank in range(size)]


@pytest.fixture
def agent() -> Iterator[int]:
    """The port of a store that outlives the processes which meet there."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield store.port
    del store


def met(of: list[MeetingPlace], work: Callable[[Meeting], Any] = lambda meeting: None) -> list[Any]:
    """What `work` returns for each process, when all have met."""

    def enter(place: MeetingPlace) -> tuple[Meeting, Any]:
        meeting = Meeting(place, process(place.rank), LIMIT_S)
        return meeting, work(meeting)

    with ThreadPoolExecutor(len(of)) as pool:
        results = list(pool.map(enter, of))  # rank 0's store stays until all are done
    return [result for _, result in results]


def test_all_know_all_and_hear_what_each_says() -> None:
    def work(meeting: Meeting) -> tuple[Any, Any]:
        rank = meeting._place.rank
        meeting.say("number", rank * 10)
        if rank == 0:
            meeting.say("sum", sum(meeting.said_by_all("number")))
        return [one.address for one in meeting.processes], meeting.said_by("sum", 0)

    assert met(places(3), work) == [(["10.0.0.0", "10.0.0.1", "10.0.0.2"], 30)] * 3


def test_a_job_that_is_started_again_meets_anew_in_the_same_store(agent: int) -> None:
    """In whatever order its processes come: who is early finds the room of the attempt before."""
    two = [replace(place, port=agent, hosted=True) for place in places(2)]
    for attempt in range(3):
        order = list(reversed(two)) if attempt else two

        def work(meeting: Meeting, attempt: int = attempt) -> Any:
            meeting.say("attempt", attempt)
            return meeting.said_by_all("attempt")

        assert met(order, work) == [[attempt] * 2] * 2


def test_what_rank_0_refuses_is_raised_by_all() -> None:
    def work(meeting: Meeting) -> str:
        if meeting._place.rank == 0:
            meeting.refuse(ConfigError("no such policy"))
            assert meeting._store.add(f"{meeting._room}/heard", 0) == 2, "the store may end now"
            return ""
        with pytest.raises(ConfigError) as raised:
            meeting.said_by("run", 0)
        return str(raised.value)

    assert met(places(3), work) == ["", "no such policy", "no such policy"]


def test_who_does_not_come_is_named() -> None:
    first, *_ = places(3)
    with pytest.raises(TimedOut, match=r"for rank 1, 2; torchrun started 3 processes"):
        Meeting(first, process(0), 0.2)
    with pytest.raises(TimedOut, match=r"for rank 0, which is to listen on 127\.0\.0\.1:"):
        Meeting(replace(first, rank=1, port=free_port()), process(1), 0.2)


def test_a_rank_is_one_process(agent: int) -> None:
    [place] = [replace(place, port=agent, hosted=True) for place in places(1)]
    first = process(0, os.getpid())
    assert Meeting(place, first, LIMIT_S).processes == [first]
    with pytest.raises(UsageError, match=rf"process {os.getpid()} takes part as rank 0 already, .* one \({NOBODY}\)"):
        Meeting(place, process(0), LIMIT_S)


def test_a_number_of_a_process_on_another_machine_means_nothing(agent: int) -> None:
    [place] = [replace(place, port=agent, hosted=True) for place in places(1)]
    Meeting(place, replace(process(0, os.getpid()), machine="elsewhere"), LIMIT_S)
    again = process(0)
    assert Meeting(place, again, LIMIT_S).processes == [again]


def test_a_port_that_is_taken_is_named(agent: int) -> None:
    [place] = places(1)
    with pytest.raises(EnvironmentNotReady, match=r"cannot listen on 127.0.0.1:\d+, beside MASTER_PORT"):
        Meeting(replace(place, port=agent), process(0), LIMIT_S)
