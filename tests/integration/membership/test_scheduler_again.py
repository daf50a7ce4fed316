"""The scheduler of real BytePS processes is killed and started again: sums, newcomers and the end do not notice."""

from __future__ import annotations

import signal

import psutil
import pytest

from tests.integration.membership.byteps_processes import PATIENCE_S, Job, job
from tests.launching import wait_for

pytestmark = pytest.mark.timeout(180)

EVERYBODY = [0, 1, 2]


def test_newcomers_that_come_before_all_others_wait_for_these_and_it_waits_for_one_that_is_stopped() -> None:
    """Servers are stopped, so it hears of the workers alone at first. At the end a worker does not speak for itself."""
    with job() as one:
        one.round(EVERYBODY)
        one.kill(1, left=[0, 2])
        one.signal(signal.SIGSTOP, "server-0", "server-1")
        one.kill_process("scheduler")
        one.start_scheduler()
        await_connection(one, "scheduler", "worker-0")
        one.start_worker(1, starts=1)
        await_connection(one, "worker-1", "scheduler")
        one.signal(signal.SIGCONT, "server-0", "server-1")
        assert one.hears(1) == "ready"
        one.round([0, 2])
        one.admit(1, others=[0, 2])
        one.round(EVERYBODY)
        one.signal(signal.SIGSTOP, "worker-2")
        one.kill_process("scheduler")
        one.start_scheduler()
        one.say([0, 1], "end")
        one.signal(signal.SIGCONT, "worker-2")
        one.say([2], "end")
        assert [one.hears(rank) for rank in EVERYBODY] == [None] * len(EVERYBODY)
        one.ended()


def await_connection(one: Job, name: str, other: str) -> None:
    """Wait until the process of this name has a connection to where the other one listens."""
    process, listener = (psutil.Process(one.processes[each].pid) for each in (name, other))

    def is_connected() -> bool:
        ports = {found.laddr.port for found in listener.net_connections("tcp") if found.status == psutil.CONN_LISTEN}
        return any(found.raddr and found.raddr.port in ports for found in process.net_connections("tcp"))

    wait_for(is_connected, f"a connection of {name} to {other}", PATIENCE_S)


def test_it_comes_when_all_others_wait_for_it_to_end_and_one_was_lost_meanwhile() -> None:
    with job() as one:
        one.kill_process("scheduler")
        one.round(EVERYBODY)
        one.kill(2, left=[0, 1], hear=())
        one.round([0, 1])
        one.say([0, 1], "end")
        one.start_scheduler()
        assert [one.hears(rank) for rank in (0, 1)] == [None] * 2
        one.ended()
