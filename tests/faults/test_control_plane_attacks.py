"""Attacks of another user on the ports and sockets of the control plane; attacks.py has the table."""

from __future__ import annotations

import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.testbed.ports import free_port
from dynamix_ps.config.schema import Metrics, Timeouts
from dynamix_ps.messages import Plan
from dynamix_ps.metrics.network.probe import client as probe_client
from dynamix_ps.metrics.network.probe.client import ProbeSource
from tests.control_plane import config
from tests.faults.attacks import ARBITRATOR, GRPC, METRICS, PROBE, Attack, attacks_at
from tests.faults.stranger import attack
from tests.integration.arbitrator.arbitrator_process import PATIENCE_S, TOKEN, ArbitratorProcess, Worker, wait_until
from tests.other_user import needs_another_user
from tests.probes import probe_process

pytestmark = pytest.mark.timeout(120)

START = Plan(0, (64, 64, 64))
TIMEOUTS = Timeouts(rpc_s=2.0, lease_s=3.0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may enter; that of pytest is closed to them."""
    with tempfile.TemporaryDirectory(prefix="dynamix-probe-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


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
    workers = [Worker(arbitrator.address, rank, timeouts=TIMEOUTS) for rank in range(3)]
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


@pytest.mark.parametrize("row", attacks_at(ARBITRATOR), ids=lambda row: row.key)
def test_who_has_the_port_of_the_arbitrator_gets_no_token_and_gives_no_plan(tmp_path: Path, row: Attack) -> None:
    arbitrator = ArbitratorProcess(tmp_path / "run", config())
    worker = Worker(arbitrator.address, timeouts=TIMEOUTS)
    try:
        if row.key == "impostor-after-a-crash":
            arbitrator.start()
            arbitrator.wait_listening()
            worker.client.start()
            wait_until(worker.client.peers, "a session")
            arbitrator.kill()
        with attack("impostor", arbitrator.address) as said:
            if row.key == "impostor-before-the-start":
                worker.client.start()
            worker.report(START, 0)
            wait_until(lambda: any("is not used" in told["detail"] for _, told in worker.events), "the warning")
            attempts = worker.client._rng.getstate()
            wait_until(lambda: worker.client._rng.getstate() != attempts, "another attempt")
            assert worker.client.newest_plan() is None
        arbitrator.start()
        arbitrator.wait_listening()
        wait_until(lambda: worker.kinds()[-1] == "recovered", "the arbitrator to be found")
    finally:
        worker.client.close(PATIENCE_S)
        arbitrator.kill()
    assert "Greet" in said[0]
    assert TOKEN not in said[0]
    warnings = [told["detail"] for _, told in worker.events if "is not used" in told.get("detail", "")]
    assert len(warnings) == 1, worker.events
    assert warnings[0].startswith(f"{arbitrator.address} is not used: ")
    assert "proof" in warnings[0] or "does not know the token of this run" in warnings[0]


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


@needs_another_user
@pytest.mark.parametrize("row", attacks_at(PROBE), ids=lambda row: row.key)
def test_a_role_is_answered_while_the_probe_is_attacked(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch, row: Attack
) -> None:
    monkeypatch.setattr(probe_client, "LIMIT_S", PATIENCE_S)  # of a role; a busy machine may take longer
    path = open_folder / "probe.sock"
    with probe_process(path, private=row.key == "probe-of-a-run"):
        source = ProbeSource(str(path))
        before = source.read()
        with attack(row.key, str(path)):
            for _ in range(20):
                assert source.read().connections[0].bytes_out > before.connections[0].bytes_out
            source.close()
            assert source.read().connections, "a role that comes during the attack is answered too"
        source.close()
