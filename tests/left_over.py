"""A plugin of pytest: a run that leaves something on this machine fails, and says what.

    python -m pytest -p tests.left_over tests

It looks at processes, shared memory, network namespaces, control groups and folders. What begins beside the run looks
as if it were left by it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

_BEFORE, _LEFT = pytest.StashKey[set[str]](), pytest.StashKey[list[str]]()
_ENDING_S = 20.0  # servers of forks, and what they have started, end with the process of the tests
_FOLDERS = ("dx-*", "dynamix*", "forks-*")


def pytest_sessionstart(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):  # of pytest-xdist
        session.config.stash[_BEFORE] = found()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _BEFORE in session.config.stash:
        session.config.stash[_LEFT] = left = left_since(session.config.stash[_BEFORE])
        if left and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if left := config.stash.get(_LEFT, []):
        terminalreporter.section("left on this machine", red=True)
        for one in left:
            terminalreporter.line(one)


def found() -> set[str]:
    """What is there that may be of our tests, of this run or of another."""
    return {*_processes(), *_files()}


def left_since(before: set[str]) -> list[str]:
    """What there was not before, and does not go by itself."""
    deadline_s = time.monotonic() + _ENDING_S
    while (left := found() - before) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    return sorted(left)


def _processes() -> Iterator[str]:
    """Of the Python of this environment, those that no test process that still runs has started."""
    for process in psutil.process_iter(["cmdline", "status"]):
        command = process.info["cmdline"] or []
        if not command or not command[0].startswith(sys.prefix) or process.info["status"] == psutil.STATUS_ZOMBIE:
            continue
        try:
            above = {os.getpid(), os.getppid()} & {process.pid, *(parent.pid for parent in process.parents())}
        except psutil.NoSuchProcess:
            continue
        if not above:
            yield f"process {process.pid}: {' '.join(command)[:120]}"


def _files() -> Iterator[str]:
    temporary = Path(tempfile.gettempdir())
    places = [path for pattern in _FOLDERS for path in temporary.glob(pattern)]
    places = [path for path in places if not path.name.startswith(f"forks-{os.getpid()}-")]  # goes with this process
    for folder in ("/dev/shm", "/run/netns"):
        places += Path(folder).glob("*")
    for pattern in ("dynamix*", "*/dynamix*"):
        places += Path("/sys/fs/cgroup").glob(pattern)
    return map(str, places)
