"""A server role that watches its connections, and a real arbitrator that joins them with those of workers."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dynamix_ps.config.load import dump_config
from dynamix_ps.config.schema import Metrics
from dynamix_ps.messages import Plan, SystemSample
from dynamix_ps.metrics.network.monitor import NetworkMonitor
from dynamix_ps.metrics.role_report import make_report
from tests.control_plane import config, run_under
from tests.integration.arbitrator.arbitrator_process import PATIENCE_S, ArbitratorProcess, Worker, wait_until

pytestmark = pytest.mark.timeout(120)

# What BytePS does in a server: it accepts a connection of every worker and reads what comes.
SERVER = """
import socket, sys, threading
from server_hooks.monitor import monitored

def read_all(connection):
    while connection.recv(1 << 20):
        pass

def accept_all(listener):
    while True:
        threading.Thread(target=read_all, args=(listener.accept()[0],), daemon=True).start()

with monitored("server"), socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    threading.Thread(target=accept_all, args=(listener,), daemon=True).start()
    sys.stdin.read()
"""


@contextlib.contextmanager
def server_role(arbitrator: ArbitratorProcess, folder: Path, **changes: str) -> Iterator[subprocess.Popen[str]]:
    file = folder / "server.yaml"
    file.write_text(dump_config(config().model_copy(update={"metrics": Metrics(network="sockdiag", interval_s=0.05)})))
    environment = {**arbitrator.environment, "DYNAMIX_CONFIG": str(file), "DYNAMIX_ROLE_NAME": "server-0", **changes}
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def role_lines(arbitrator: ArbitratorProcess, name: str = "server-0") -> list[dict[str, Any]]:
    file = arbitrator.folder / "roles" / f"{name}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


class PushingWorker:
    """A worker with one connection to the server, which reports what it sees of it at the end of every window."""

    def __init__(self, arbitrator: ArbitratorProcess, rank: int, port: int) -> None:
        self.rank = rank
        self.socket = socket.create_connection(("127.0.0.1", port))
        here = f"127.0.0.1:{self.socket.getsockname()[1]}"
        self.network = NetworkMonitor("sockdiag", lambda *event: None, keep=lambda one: one.local == here)
        self.worker = Worker(arbitrator.address, rank)
        self.worker.client.start()

    def window(self, number: int) -> None:
        self.socket.sendall(bytes(100_000 * (self.rank + 1)))
        record = run_under(Plan(0, (64, 64, 64)), number)[self.rank]
        name = f"worker-{self.rank}"
        observed = make_report(name, "worker", self.rank, self.network.read(), SystemSample(), time.time())
        assert record is not None
        self.worker.client.report(record, observed)

    def close(self) -> None:
        self.worker.client.close(PATIENCE_S)
        self.network.close()
        self.socket.close()


def test_links_are_joined_from_both_sides_and_journaled(arbitrator: ArbitratorProcess, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(server_role(arbitrator, tmp_path))
        assert server.stdin is not None and server.stdout is not None
        port = int(server.stdout.readline())
        workers = [PushingWorker(arbitrator, rank, port) for rank in range(3)]
        for worker in workers:
            stack.callback(worker.close)

        def joined_in(window: int) -> bool:
            for worker in workers:
                worker.window(window)
            wait_until(lambda: arbitrator.last_window() == window, f"window {window}")
            wait_until(lambda: window == 0 or any(arbitrator.lines("links")), "its links")
            found = arbitrator.lines("links")
            return bool(found) and all(
                link["source"] == "sockdiag" and link["push_difference"] is not None and link["push_bytes_per_s"]
                for link in found[-1]["links"]
            )

        windows = iter(range(1000))
        wait_until(lambda: joined_in(next(windows)), "links that both sides saw")
        line = arbitrator.lines("links")[-1]
        assert [link["rank"] for link in line["links"]] == [0, 1, 2]
        assert all(link["push_rtt_s"] > 0 and link["age_s"] < PATIENCE_S for link in line["links"])
        (view,) = line["servers"]
        assert (view["name"], view["source"]) == ("server-0", "sockdiag")
        assert view["push_bytes_per_s"] > 0
        assert view["system"]["memory_bytes"] > 1_000_000

        port_of_arbitrator = arbitrator.address.rpartition(":")[2]
        lines = role_lines(arbitrator)
        assert {one["kind"] for one in lines} == {"role"}
        assert not any(flow["remote"].endswith(f":{port_of_arbitrator}") for one in lines for flow in one["flows"])
        assert max(len(one["flows"]) for one in lines) == 3
        assert lines[-1]["system"]["gpu_utilisation"] is None  # unknown, and never 0

        before = len(role_lines(arbitrator))
        server.stdin.close()
        assert server.wait(PATIENCE_S) == 0
        assert len(role_lines(arbitrator)) > before  # a last one at the end


@pytest.mark.parametrize("missing", ["arbitrator", "run folder"])
def test_what_is_missing_does_not_hurt_the_server(arbitrator: ArbitratorProcess, tmp_path: Path, missing: str) -> None:
    changes = {"DYNAMIX_ARBITRATOR": "127.0.0.1:9"} if missing == "arbitrator" else {"DYNAMIX_RUN_DIR": os.devnull}
    with server_role(arbitrator, tmp_path, **changes) as server:
        assert server.stdin is not None and server.stdout is not None
        server.stdout.readline()
        if missing == "arbitrator":
            wait_until(lambda: len(role_lines(arbitrator)) >= 3, "reports in the run folder")
        server.stdin.close()
        assert server.wait(PATIENCE_S) == 0
