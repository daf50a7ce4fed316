"""The companion's servers, which are any program here."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dynamix_ps.errors import PeerLostError
from dynamix_ps.launch.roles.plan import RoleSpec
from dynamix_ps.other_launchers import begin, servers
from dynamix_ps.other_launchers.duty import Duty
from dynamix_ps.other_launchers.servers import ServerProcesses
from dynamix_ps.run_record.run_folder import RunFolder
from tests.launching import wait_for

pytestmark = pytest.mark.timeout(30)
LOST = "server-0 ended with exit code 3; see logs/server-0.log in the run folder"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.make()
    return folder


@pytest.fixture
def workers() -> Any:
    return SimpleNamespace(some_gone=False, starter_is_done=False)


@pytest.fixture
def started(folder: RunFolder, workers: Any) -> Iterator[Any]:
    """Starts a server with this code."""
    running: list[ServerProcesses] = []

    def start(code: str) -> ServerProcesses:
        role = RoleSpec("server-0", "server", (sys.executable, "-c", code), {"A": "1"})
        running.append(ServerProcesses([role], folder, workers))
        return running[0]

    yield start
    workers.starter_is_done = False
    for one in running:
        one.end()


def test_a_server_that_ends_is_told_once(started: Any, folder: RunFolder, capfd: pytest.CaptureFixture[str]) -> None:
    found = started("import os; print(os.environ['A']); raise SystemExit(3)")
    wait_for(lambda: found.look() or found.lost, "the end of the server")
    found.look()
    assert (found.lost, capfd.readouterr().out) == (LOST, f"{LOST}\n")
    assert folder.log_file("server-0").read_text() == "1\n"


def test_a_server_that_ends_after_the_workers_is_no_loss_to_them(
    started: Any, workers: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    workers.starter_is_done = True
    started("raise SystemExit(3)").end()
    assert not capfd.readouterr().out


def test_servers_end_when_a_worker_is_missing(
    started: Any, workers: Any, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "_ALONE_S", 0.0)
    found = started("import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    wait_for(folder.log_file("server-0").read_text, "a server that runs")
    found.look()
    os.kill(pid := int(folder.log_file("server-0").read_text()), 0)
    workers.some_gone = True
    wait_for(lambda: found.look() or not Path(f"/proc/{pid}").exists(), "its end")
    assert not found.lost, "it was stopped"


def test_the_worker_that_has_started_a_companion_hears_of_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    companion = (sys.executable, "-c", f"input(); print({LOST!r})")
    told, errors = threading.Event(), []
    monkeypatch.setattr(begin.own_process, "command", lambda *_: companion)
    monkeypatch.setattr(begin.atexit, "register", lambda finish: None)
    monkeypatch.setattr(begin, "end_beside_training", lambda error: (errors.append(error), told.set()))
    role = RoleSpec("server-0", "server", (), {})
    begin._start_companion("records", Duty({}, 0, "", "", 0.0, roles=[role]), 1.0, os.open(os.devnull, os.O_RDONLY))
    assert told.wait(20)
    assert [(type(error), str(error)) for error in errors] == [(PeerLostError, LOST)]
