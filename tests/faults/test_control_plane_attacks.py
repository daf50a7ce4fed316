"""Attacks of another user on the ports and sockets of the control plane; attacks.py has the table."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dynamix_ps.config.schema import Metrics
from dynamix_ps.messages import Plan
from tests.control_plane import config
from tests.faults.attacks import GRPC, METRICS, Attack, attacks_at
from tests.faults.stranger import attack
from tests.integration.arbitrator_process import PATIENCE_S, ArbitratorProcess, Worker, wait_until
from tests.launching import free_port

pytestmark = pytest.mark.timeout(120)

START = Plan(0, (64, 64, 64))


@contextmanager
def running(arbitrator: ArbitratorProcess) -> Iterator[None]:
    """The arbitrator, from its start to its end; it must survive the block."""
    try:
        arbitrator.start()
        arbitrator.wait_listening()
        yield
    finally:
        arbitrator.kill()
    assert len(arbitrator.lines("started")) == 1
    assert "Traceback" not in arbitrator.log


def serve_workers(arbitrator: ArbitratorProcess) -> None:
    """Three workers register, report, get plan 1 and leave, all without a `degraded` event."""
    workers = [Worker(arbitrator.address, rank) for rank in range(3)]
    try:
        for worker in workers:
            worker.client.start()
            worker.report(START, 0, compute_s=1.0 + worker.rank)
        wait_until(lambda: all(worker.client.newest_plan() for worker in workers), "plan 1 on all workers")
        wait_until(lambda: all(len(worker.client.peers()) == 3 for worker in workers), "heartbeats")
    finally:
        for worker in workers:
            worker.client.close(PATIENCE_S)
    assert len(arbitrator.lines("left")) == 3
    assert [worker.events for worker in workers] == [[], [], []]


@pytest.mark.parametrize("row", attacks_at(GRPC), ids=lambda row: row.key)
def test_workers_are_served_while_the_arbitrator_is_attacked(tmp_path: Path, row: Attack) -> None:
    arbitrator = ArbitratorProcess(tmp_path / "run", config())
    with running(arbitrator), attack(row.key, arbitrator.address):
        serve_workers(arbitrator)


@pytest.mark.parametrize("row", attacks_at(METRICS), ids=lambda row: row.key)
def test_workers_and_scrapers_are_served_while_the_metrics_are_attacked(tmp_path: Path, row: Attack) -> None:
    address = f"127.0.0.1:{(port := free_port())}"
    settings = config().model_copy(update={"metrics": Metrics(prometheus_port=port)})
    arbitrator = ArbitratorProcess(tmp_path / "run", settings)
    with running(arbitrator), attack(row.key, address):
        serve_workers(arbitrator)
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as answer:
            assert b"dynamix_windows_total" in answer.read()
    assert arbitrator.lines("degraded") == []
