"""A real arbitrator process and real clients, for tests of the control plane over sockets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from benchmarks.testbed.ports import free_port
from dynamix_ps.config.load import dump_config
from dynamix_ps.config.schema import Config, Timeouts
from dynamix_ps.messages import Plan, Registration
from dynamix_ps.one_thread import ONE_THREAD
from dynamix_ps.rpc.access import ArbitratorAccess
from dynamix_ps.rpc.client import ArbitratorClient
from tests.control_plane import registration, run_under

RUN_ID, TOKEN = "run-1", "secret"
PATIENCE_S = 30.0  # only how long a broken test may take to fail


def wait_until(condition: Callable[[], Any], what: str = "the condition") -> None:
    """Poll until `condition` is true."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, f"waited {PATIENCE_S} s for {what}"
        time.sleep(0.01)


def free_address() -> str:
    return f"127.0.0.1:{free_port()}"


class ArbitratorProcess:
    """`python -m dynamix_ps.arbitrator` with its run folder; may be killed and started again."""

    def __init__(self, folder: Path, config: Config, address: str | None = None) -> None:
        self.folder = folder
        self.address = address or free_address()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.resolved.yaml").write_text(dump_config(config))
        self.environment = {
            **os.environ,
            "DYNAMIX_CONFIG": str(folder / "config.resolved.yaml"),
            "DYNAMIX_RUN_DIR": str(folder),
            "DYNAMIX_RUN_ID": RUN_ID,
            "DYNAMIX_TOKEN": TOKEN,
            "DYNAMIX_ARBITRATOR": self.address,
            "DMLC_NUM_SERVER": "1",
            **ONE_THREAD,
        }
        self.process: subprocess.Popen[str] | None = None
        self.log = ""  # what it wrote to stderr, complete after `kill`
        self._reader: threading.Thread | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dynamix_ps.arbitrator"],
            env=self.environment,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_listening(self) -> None:
        assert self.process is not None and self.process.stderr is not None
        stderr = self.process.stderr
        for line in stderr:
            self.log += line
            if "listening" in line:
                self._reader = threading.Thread(target=lambda: self._read(stderr), daemon=True)
                self._reader.start()  # keep the pipe empty
                return
        raise AssertionError(f"the arbitrator ended with {self.process.wait()}")

    def _read(self, stderr: IO[str]) -> None:
        for line in stderr:
            self.log += line

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self._reader is not None:
            self._reader.join()

    def lines(self, *kinds: str) -> list[dict[str, Any]]:
        file = self.folder / "arbitrator" / "journal.jsonl"
        text = file.read_text() if file.exists() else ""
        complete = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]  # the last one may grow
        lines = [json.loads(line) for line in complete]
        return [line for line in lines if line["kind"] in kinds]

    def last_window(self) -> int:
        """The window decided last, -1 before the first."""
        return max((line["window"] for line in self.lines("plan", "kept")), default=-1)


class Worker:
    """A client and the events it told."""

    def __init__(self, address: str, rank: int = 0, me: Registration | None = None, **changes: Any) -> None:
        """`me`: by default a first registration of this rank. `changes`: of the access."""
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.rank = rank
        access = replace(ArbitratorAccess(address, RUN_ID, TOKEN, Timeouts(rpc_s=0.5, lease_s=1.5)), **changes)
        self.client = ArbitratorClient(
            access,
            me or registration(rank),
            ((32, 1024),) * 3,
            on_event=lambda kind, fields: self.events.append((kind, fields)),
        )

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]

    def report(self, plan: Plan, window: int, **changes: Any) -> None:
        """This worker's part of a window that ran under `plan`."""
        item = run_under(plan, window, **changes)[self.rank]
        assert item is not None
        self.client.report(item)
