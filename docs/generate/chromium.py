"""Chromium without a window, for pictures of pages and for tests of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_LIMIT_S = 60.0
_ROOM_MS = 8000  # of virtual time for a page's scripts; a live page takes in the news twice


def chromium() -> str | None:
    """The program; None: none is installed."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


def run(program: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Open a page, with a profile of its own in `folder`. Raises CalledProcessError, TimeoutExpired."""
    always = ("--headless=new", "--no-sandbox", "--disable-gpu", f"--virtual-time-budget={_ROOM_MS}")
    return subprocess.run(
        [program, *always, f"--user-data-dir={folder / 'profile'}", *options],
        capture_output=True,
        text=True,
        check=True,
        timeout=_LIMIT_S,
        env=os.environ | {"HOME": str(folder)},
    )
