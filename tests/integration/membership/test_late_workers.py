"""A worker comes late to real BytePS processes, in the place of one that was killed, and is in all sums."""

from __future__ import annotations

import signal

import pytest

from tests.integration.membership.byteps_processes import PATIENCE_S, Job, job
from tests.launching import wait_for

pytestmark = pytest.mark.timeout(180)


def test_workers_come_in_the_places_of_others_and_one_that_is_gone_again_at_once_harms_nobody() -> None:
    with job() as one:
        one.kill(1, left=[0, 2])
        one.start_worker(1, starts=1)
        one.round([0, 2])  # it prepares beside training
        assert one.hears(1) == "ready"
        answers_before_it_enters(one)
        one.admit(1, others=[0, 2])
        one.round([0, 1, 2])
        # that one is lost too, and so is the first worker; both places are taken again
        one.kill(1, left=[0, 2])
        one.kill(0, left=[2])
        for rank, others in ((1, [2]), (0, [1, 2])):
            one.start_worker(rank, starts=2)
            assert one.hears(rank) == "ready"
            one.round(others)
            one.admit(rank, others)
            one.round(sorted([rank, *others]))
        one.kill(1, left=[0, 2])
        for _ in range(3):
            one.start_worker(1, starts=3)
            one.kill_process("worker-1")  # servers and scheduler may hear of it after its end
        one.round([0, 2])
        one.start_worker(1, starts=4)
        assert one.hears(1) == "ready"
        one.admit(1, others=[0, 2])
        one.round([0, 1, 2])
        one.tell([0, 1, 2], "end")


def answers_before_it_enters(one: Job) -> None:
    """Worker 1 has not begun with sums, and the transport of each worker tells a server whether it lives."""
    one.push([0])
    one.signal(signal.SIGSTOP, "worker-1", "worker-2")
    wait_for(lambda: one.silent(0) == {1, 2}, "both to count as silent", PATIENCE_S)  # the server asks both
    one.signal(signal.SIGCONT, "worker-1")
    wait_for(lambda: one.silent(0) == {2}, "the one that comes to answer", PATIENCE_S)
    one.signal(signal.SIGCONT, "worker-2")
    one.push([2])
    assert one.tell([0, 2], "sum") == [[257.0]] * 2
