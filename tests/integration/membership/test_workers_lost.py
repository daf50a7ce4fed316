"""Workers and servers are killed in a round, and the sums of the others go on: real processes, value by value.

What servers and workers do then is played in many more orders by tests/unit/byteps_build/test_elastic.py.
"""

from __future__ import annotations

import signal

import pytest

from tests.integration.membership.byteps_processes import job

pytestmark = pytest.mark.timeout(120)

ALL, LEFT, ALONE = [[273.0]], [[257.0]], [[1.0]]  # sums of the workers 0, 1 and 2, of 0 and 2, and of 0


def test_losses_in_a_round_cost_nobody_a_round() -> None:
    with job() as one:
        one.push([0, 1, 2])
        one.signal(signal.SIGSTOP, "worker-2")  # so it may lack this sum when worker 1 is lost
        assert one.tell([0, 1], "sum") == ALL * 2
        one.push([0])
        one.tell([1], "push")  # a part of the next round
        one.kill_process("worker-1")
        one.signal(signal.SIGCONT, "worker-2")
        one.go_on_without_worker(1, [0, 2])
        assert one.tell([2], "sum") == ALL, "of the round before"
        one.push([2])
        assert one.tell([0, 2], "sum") == LEFT * 2
        # a server that has parts of a round, and nobody's sums
        one.push([0])
        one.kill_server(0, left=[0, 2])
        one.push([2])
        assert one.tell([0, 2], "sum") == LEFT * 2
        # a worker after all its parts, whose sum the last server has
        one.push([2])
        one.kill(2, left=[0])
        one.push([0])
        assert one.tell([0], "sum") == ALONE
        one.tell([0], "end")
        one.ended()
