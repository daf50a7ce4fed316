"""A copy of the tree in which lines are broken. What the tests of a break write does not reach the tree itself."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.breaks.catalogue import Break, find_place, read_product

_BREAK_S = 180.0  # limit for all tests of one break
_OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "--timeout=60", "--hypothesis-profile=unshrunk")
_ANOTHER_TIME_NS = 10**10  # compiled forms have whole seconds
_FAILED = re.compile(r"^(?:FAILED|ERROR) ([^\s\[]+)", re.MULTILINE)  # parameters may have blanks


@dataclass(frozen=True, slots=True)
class Outcome:
    """How tests have ended. `failed`: the test that failed. `trouble`: why it is not known whether they pass."""

    passed: bool
    failed: str
    trouble: str
    seconds: float
    output: str


class WorkCopy:
    """The files of a git tree that git does not ignore, in another folder."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.folder = folder
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=tree,
            capture_output=True,
            text=True,
            check=True,
        )
        for name in filter(None, listed.stdout.split("\0")):
            source, target = tree / name, folder / name
            if source.is_file():  # a file that was deleted is listed until the next commit
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)

    @contextmanager
    def broken(self, one: Break) -> Iterator[None]:
        """The break is in the copy. By the time of the file Python knows that its compiled form is of another text."""
        file = self.folder / find_place(one, read_product(self.folder)).file
        whole, status = file.read_text(), file.stat()
        file.write_text(whole.replace(one.find, one.put))
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + _ANOTHER_TIME_NS))
        try:
            yield
        finally:
            file.write_text(whole)
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))

    def run(self, tests: Sequence[str], limit_s: float = _BREAK_S, keep_compiled: bool = False) -> Outcome:
        """Run these tests until one fails. `keep_compiled`: later runs use what Python compiles in this one."""
        command = [sys.executable, "-m", "pytest", *_OPTIONS]
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        if keep_compiled:
            del environment["PYTHONDONTWRITEBYTECODE"]
        began_s = time.monotonic()
        process = subprocess.Popen(
            [*command, *tests],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, ended = process.communicate(timeout=limit_s)[0], True
        except subprocess.TimeoutExpired:
            ended = False
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with what a broken test has left
        if not ended:
            output = process.communicate()[0]
        failed = found[1] if (found := _FAILED.search(output)) else ""
        if not ended:
            failed = failed or f"no end within {limit_s:g} s"
        trouble = f"pytest ended with code {process.returncode}" if ended and process.returncode not in (0, 1) else ""
        return Outcome(ended and process.returncode == 0, failed, trouble, time.monotonic() - began_s, output)
