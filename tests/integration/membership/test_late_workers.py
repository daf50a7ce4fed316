"""A worker or a server comes late to real BytePS processes, in the place of one that was killed, and is in all sums."""

from __future__ import annotations

import os
import signal

import pytest

from tests.integration.membership.byteps_processes import PATIENCE_S, WORKERS, job
from tests.launching import wait_for

pytestmark = pytest.mark.timeout(180)


def test_workers_come_in_the_places_of_others_and_one_that_is_gone_again_at_once_harms_nobody() -> None:
    with job() as one:
        one.round([0, 1, 2])
        one.kill(1, left=[0, 2])
        one.round([0, 2])
        one.start_worker(1, starts=1)
        one.round([0, 2])  # it prepares beside training
        one.expect_ready([1])
        one.round([0, 2])
        one.admit(1, others=[0, 2])
        one.round([0, 1, 2])
        told = one.tell([0, 1, 2], "gather")  # under a name that nobody had before
        assert told == [{rank: bytes([rank]) for rank in range(WORKERS)}] * WORKERS
        # that one is lost too, and so is the first worker; both places are taken again
        one.kill(1, left=[0, 2])
        one.kill(0, left=[2])
        for rank, others in ((1, [2]), (0, [1, 2])):
            one.start_worker(rank, starts=2)
            one.expect_ready([rank])
            one.round(others)
            one.admit(rank, others)
            one.round(sorted([rank, *others]))
        one.kill(1, left=[0, 2])
        for _ in range(3):
            one.start_worker(1, starts=3)
            one.kill_process("worker-1")  # servers and scheduler may hear of it after its end
        one.round([0, 2])
        one.start_worker(1, starts=4)
        one.expect_ready([1])
        one.admit(1, others=[0, 2])
        one.round([0, 1, 2])
        one.tell([0, 1, 2], "end")


def test_one_that_has_not_begun_with_sums_answers_whether_it_lives() -> None:
    with job() as one:
        one.kill(1, left=[0, 2])
        one.start_worker(1, starts=1, HELD="1")
        assert one.hears(1) == "connected"
        one.push([0])
        stopped = [one.processes[f"worker-{rank}"].pid for rank in (1, 2)]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: one.silent(0) == {1, 2}, "both to count as silent", PATIENCE_S)  # the server asks both
        os.kill(stopped[0], signal.SIGCONT)
        wait_for(lambda: one.silent(0) == {2}, "the one that comes to answer", PATIENCE_S)
        os.kill(stopped[1], signal.SIGCONT)
        one.says(1, "go on")
        one.expect_ready([1])
        one.push([2])
        assert one.tell([0, 2], "sum") == [[257.0]] * 2
        one.admit(1, others=[0, 2])
        one.round([0, 1, 2])


def test_servers_come_and_sum_alone_and_a_worker_that_comes_pushes_to_the_one_that_is_left() -> None:
    everybody = [0, 1, 2]
    with job() as one:
        one.round(everybody)
        for lost, other in ((1, 0), (0, 1)):
            one.kill_server(lost, left=everybody)
            one.round(everybody)
            one.start_server(lost)
            one.round(everybody)  # it prepares beside training
            one.admit_server(lost, everybody)
            one.round(everybody)
            one.kill_server(other, left=everybody)
            one.round(everybody)
            one.start_server(other)
            one.admit_server(other, everybody)
            one.round(everybody)
        one.kill_server(0, left=everybody)
        one.kill(1, left=[0, 2])
        one.round([0, 2])
        one.start_worker(1, starts=1)  # it knows the other server from the scheduler
        one.expect_ready([1])
        one.admit(1, others=[0, 2])
        one.round(everybody)
        one.ends(everybody)
