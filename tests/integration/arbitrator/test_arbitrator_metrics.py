"""The Prometheus endpoint of a real arbitrator process: it serves metrics if it can, and never disturbs."""

from __future__ import annotations

import contextlib
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.testbed.ports import free_port
from dynamix_ps.config.schema import Metrics
from dynamix_ps.messages import Plan
from tests.control_plane import config
from tests.integration.arbitrator.arbitrator_process import PATIENCE_S, ArbitratorProcess, Worker, wait_until

pytestmark = pytest.mark.timeout(120)


@contextlib.contextmanager
def one_window(folder: Path, port: int | None) -> Iterator[ArbitratorProcess]:
    """An arbitrator with its endpoint at `port`, after it has decided on one window."""
    with contextlib.ExitStack() as stack:
        settings = config().model_copy(update={"metrics": Metrics(prometheus_port=port)})
        arbitrator = ArbitratorProcess(folder / "run", settings)
        stack.callback(arbitrator.kill)
        arbitrator.start()
        arbitrator.wait_listening()
        for rank in range(3):
            worker = Worker(arbitrator.address, rank)
            worker.client.start()
            stack.callback(worker.client.close, PATIENCE_S)
            worker.report(Plan(0, (64, 64, 64)), 0)
        wait_until(lambda: arbitrator.last_window() == 0, "the first window")
        yield arbitrator


def test_a_closed_window_can_be_scraped(tmp_path: Path) -> None:
    port = free_port()
    with one_window(tmp_path, port) as arbitrator:

        def scraped() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
                return str(answer.read(), "utf-8")

        wait_until(lambda: "dynamix_windows_total" in scraped(), "the window")
        assert arbitrator.lines("degraded") == []


def test_a_port_that_is_taken_is_degraded_and_decisions_are_made(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with one_window(tmp_path, port) as arbitrator:
            (line,) = arbitrator.lines("degraded")
    assert line["what"] == "prometheus"
    assert f"127.0.0.1:{port}" in line["detail"]


def test_no_endpoint_is_no_degradation(tmp_path: Path) -> None:
    with one_window(tmp_path, None) as arbitrator:
        assert arbitrator.lines("degraded") == []
