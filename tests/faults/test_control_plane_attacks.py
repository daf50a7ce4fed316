"""Attacks of another user on the ports and sockets of the control plane; attacks.py has the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamix_ps.messages import Plan
from tests.control_plane import config
from tests.faults.attacks import GRPC, Attack, attacks_at
from tests.faults.stranger import attack
from tests.integration.arbitrator_process import PATIENCE_S, ArbitratorProcess, Worker, wait_until

pytestmark = pytest.mark.timeout(120)

START = Plan(0, (64, 64, 64))


@pytest.mark.parametrize("row", attacks_at(GRPC), ids=lambda row: row.key)
def test_workers_are_served_while_the_arbitrator_is_attacked(tmp_path: Path, row: Attack) -> None:
    arbitrator = ArbitratorProcess(tmp_path / "run", config())
    workers = [Worker(arbitrator.address, rank) for rank in range(3)]
    try:
        arbitrator.start()
        arbitrator.wait_listening()
        with attack(row.key, arbitrator.address):
            for worker in workers:
                worker.client.start()
                worker.report(START, 0, compute_s=1.0 + worker.rank)
            wait_until(lambda: all(worker.client.newest_plan() for worker in workers), "plan 1 on all workers")
            wait_until(lambda: all(len(worker.client.peers()) == 3 for worker in workers), "heartbeats")
        for worker in workers:
            worker.client.close(PATIENCE_S)
        wait_until(lambda: len(arbitrator.lines("left")) == 3, "the workers to leave")
        assert [worker.events for worker in workers] == [[], [], []]
    finally:
        for worker in workers:
            worker.client.close(PATIENCE_S)
        arbitrator.kill()
    assert len(arbitrator.lines("started")) == 1
    assert "Traceback" not in arbitrator.log
