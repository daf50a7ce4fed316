"""A browser without a window, for tests of pages; a test that asks for one is skipped where none is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_LIMIT_S = 60.0
_ROOM_MS = 3000  # of virtual time for a page's scripts


class Shown(NamedTuple):
    """A page after its scripts have run."""

    dom: str
    console: list[str]  # errors, warnings and other messages


class Browser:
    """Opens pages by themselves: every run has a new profile, which `folder` holds."""

    def __init__(self, folder: Path) -> None:
        found = next((path for name in _NAMES if (path := shutil.which(name))), None)
        if found is None:
            pytest.skip("no Chromium is installed (Debian: apt install chromium)")
        self._program = found
        self._folder = folder

    def show(self, address: str, width: int = 1280) -> Shown:
        """The page at an address (`file://...`) in a window of this width."""
        done = self._run(f"--window-size={width},1000", "--enable-logging=stderr", "--dump-dom", address)
        return Shown(done.stdout, re.findall(r":CONSOLE.*", done.stderr))

    def pages_of_print(self, address: str) -> int:
        """How many sheets the page takes when it is printed."""
        file = self._folder / "printed.pdf"
        self._run(f"--print-to-pdf={file}", address)
        return len(re.findall(rb"/Type\s*/Page\b", file.read_bytes()))

    def _run(self, *options: str) -> subprocess.CompletedProcess[str]:
        profile = f"--user-data-dir={self._folder / 'profile'}"
        always = ("--headless=new", "--no-sandbox", "--disable-gpu", f"--virtual-time-budget={_ROOM_MS}", profile)
        return subprocess.run(
            [self._program, *always, *options],
            capture_output=True,
            text=True,
            check=True,
            timeout=_LIMIT_S,
            env=os.environ | {"HOME": str(self._folder)},
        )
