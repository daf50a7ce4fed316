"""The scheduler of real BytePS processes is killed and started again: sums, newcomers and the end do not notice.

Every round is made at a word of the test, so nothing depends on time.
"""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from tests.integration.membership.test_late_workers import PATIENCE_S, Job, job
from tests.launching import wait_for

pytestmark = pytest.mark.timeout(180)

EVERYBODY = [0, 1, 2]


def end(one: Job, *lost: str) -> None:
    """All that are left end in order."""
    one.tell(EVERYBODY, "end")
    for process in one.processes.values():
        process.join(PATIENCE_S)
    codes = {name: process.exitcode for name, process in one.processes.items() if name not in lost}
    assert codes == dict.fromkeys(codes, 0)


def test_sums_go_on_without_it_and_the_one_in_its_place_ends_the_job() -> None:
    with job() as one:
        one.round(EVERYBODY)
        for _ in range(2):
            one.kill_scheduler()
            one.round(EVERYBODY)
            one.start_scheduler()
            one.round(EVERYBODY)
        end(one)


def test_it_comes_when_all_others_wait_for_it_to_end() -> None:
    with job() as one:
        one.round(EVERYBODY)
        one.kill_scheduler()
        one.say(EVERYBODY, "end")
        one.start_scheduler()
        assert [one.hears(rank) for rank in EVERYBODY] == [None] * len(EVERYBODY)
        for process in one.processes.values():
            process.join(PATIENCE_S)
        assert {name: process.exitcode for name, process in one.processes.items()} == dict.fromkeys(one.processes, 0)


def test_newcomers_that_come_before_it_wait_for_it() -> None:
    """A worker and a server, in places of which it knows nothing."""
    with job() as one:
        one.round(EVERYBODY)
        one.kill(1, left=[0, 2])
        one.kill_server(1, left=[0, 2])
        one.kill_scheduler()
        one.start_worker(1, starts=1)
        one.start_server(1)
        one.round([0, 2])
        one.start_scheduler()
        one.expect_ready([1])
        one.round([0, 2])
        one.admit(1, others=[0, 2])
        one.round(EVERYBODY)
        one.admit_server(1, EVERYBODY)
        one.round(EVERYBODY)
        one.kill_server(0, left=EVERYBODY)  # what comes is summed by the newcomer alone
        one.round(EVERYBODY)
        end(one, "server-0")


def test_newcomers_that_come_before_all_others_wait_for_these() -> None:
    """Servers are stopped, so it hears of the workers alone at first."""
    with job() as one:
        one.round(EVERYBODY)
        one.kill(1, left=[0, 2])
        servers = [one.processes[f"server-{number}"].pid for number in (0, 1)]
        for pid in servers:
            os.kill(pid, signal.SIGSTOP)
        one.kill_scheduler()
        one.start_scheduler()
        await_connection(one, "scheduler", "worker-0")
        one.start_worker(1, starts=1)
        await_connection(one, "worker-1", "scheduler")
        for pid in servers:
            os.kill(pid, signal.SIGCONT)
        one.expect_ready([1])
        one.round([0, 2])
        one.admit(1, others=[0, 2])
        one.round(EVERYBODY)
        end(one)


def await_connection(one: Job, name: str, other: str) -> None:
    """Wait until the process of this name has a connection to where the other one listens."""
    process, listener = (psutil.Process(one.processes[each].pid) for each in (name, other))

    def is_connected() -> bool:
        ports = {found.laddr.port for found in listener.net_connections("tcp") if found.status == psutil.CONN_LISTEN}
        return any(found.raddr and found.raddr.port in ports for found in process.net_connections("tcp"))

    wait_for(is_connected, f"a connection of {name} to {other}", PATIENCE_S)


def test_one_that_was_lost_meanwhile_is_not_waited_for() -> None:
    with job() as one:
        one.round(EVERYBODY)
        one.kill_scheduler()
        one.kill(2, left=[0, 1], hear=())
        one.round([0, 1])
        one.start_scheduler()
        one.round([0, 1])
        one.tell([0, 1], "end")
        for process in one.processes.values():
            process.join(PATIENCE_S)
        del one.processes["worker-2"]
        assert {name: process.exitcode for name, process in one.processes.items()} == dict.fromkeys(one.processes, 0)


def test_one_that_is_stopped_meanwhile_is_waited_for() -> None:
    """It does not speak for itself before the end; the others have told of it."""
    with job() as one:
        one.round(EVERYBODY)
        stopped = one.processes["worker-2"].pid
        os.kill(stopped, signal.SIGSTOP)
        one.kill_scheduler()
        one.start_scheduler()
        one.say([0, 1], "end")
        os.kill(stopped, signal.SIGCONT)
        one.say([2], "end")
        assert [one.hears(rank) for rank in EVERYBODY] == [None] * len(EVERYBODY)


def test_one_that_comes_is_told_of_all_and_all_of_it() -> None:
    """Its place is taken again after another loss of the scheduler."""
    with job() as one:
        one.round(EVERYBODY)
        for starts in (1, 2):
            one.kill_scheduler()
            one.start_scheduler()
            one.kill(1, left=[0, 2], hear=())  # the scheduler may not know it yet
            one.start_worker(1, starts=starts)
            one.expect_ready([1])
            one.round([0, 2])
            one.admit(1, others=[0, 2])
            one.round(EVERYBODY)
        end(one)
