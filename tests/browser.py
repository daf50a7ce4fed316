"""A browser without a window, for tests of pages; a test that asks for one is skipped where none is installed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from docs.generate.chromium import chromium, run


class Shown(NamedTuple):
    """A page after its scripts have run."""

    dom: str
    console: list[str]  # errors, warnings and other messages


class Browser:
    """Opens pages by themselves: every run has a new profile, which `folder` holds."""

    def __init__(self, folder: Path) -> None:
        if (found := chromium()) is None:
            pytest.skip("no Chromium is installed (Debian: apt install chromium)")
        self.program = found
        self._folder = folder

    def show(self, address: str, width: int = 1280) -> Shown:
        """The page at an address (`file://...`) in a window of this width."""
        done = run(
            self.program, self._folder, f"--window-size={width},1000", "--enable-logging=stderr", "--dump-dom", address
        )
        return Shown(done.stdout, re.findall(r":CONSOLE.*", done.stderr))

    def pages_of_print(self, address: str) -> int:
        """How many sheets the page takes when it is printed."""
        file = self._folder / "printed.pdf"
        run(self.program, self._folder, f"--print-to-pdf={file}", address)
        return len(re.findall(rb"/Type\s*/Page\b", file.read_bytes()))
