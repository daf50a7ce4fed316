"""A plugin of pytest (`-p tests.failure_log`): adds what failed, and why, to build/failures.jsonl, an object a line."""

from __future__ import annotations

import json
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

LOG = Path(__file__).resolve().parents[1] / "build" / "failures.jsonl"
_LONGEST = 500  # characters of a reason


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # of pytest-xdist, whose controller has all
        return
    failed = [one for kind in ("failed", "error") for one in terminalreporter.stats.get(kind, [])]
    if not failed:
        return
    told = {"time": datetime.now(timezone.utc).isoformat(timespec="seconds"), "commit": commit()}
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("a") as log:
        log.writelines(json.dumps(told | {"test": one.nodeid, "why": _why(one)}) + "\n" for one in failed)
    terminalreporter.line(f"what failed, and why: {LOG}")


def commit() -> str:
    """The commit that is checked out, with a + where files differ from it."""
    command = ["git", "-C", str(LOG.parents[1]), "describe", "--always", "--exclude=*", "--dirty=+"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def _why(report: Any) -> str:
    """The message of the error; where pytest has none, the end of what it shows."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longreprtext[-_LONGEST:])[:_LONGEST]
