"""Files in the cache folder of this user, which later processes read back. Nobody else may have written them."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def read_kept(file: Path, most_bytes: int = -1) -> bytes:
    """The content, up to `most_bytes`.

    Raises OSError if it cannot be read, and PermissionError unless it is a regular file of this user alone; a link is
    none.
    """
    with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as opened:
        facts = os.fstat(opened.fileno())
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & OTHERS_WRITE:
            raise PermissionError(f"{file} is {stat.filemode(facts.st_mode)} of user {facts.st_uid}")
        return opened.read(most_bytes)


def write_kept(file: Path, content: bytes, most_files: int) -> None:
    """Write it whole or not at all, and keep so many files of its folder, those written last. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=".")
    try:
        with open(descriptor, "wb") as opened:
            opened.write(content)
        os.replace(temporary, file)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    for old in sorted(file.parent.glob("[!.]*"), key=_changed_s, reverse=True)[most_files:]:
        old.unlink(missing_ok=True)


def _changed_s(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0
