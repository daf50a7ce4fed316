"""A disk of a few kilobytes that can be full: a tmpfs of its own. Needs root."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class DiskRefused(Exception):
    """No file system can be mounted here."""


@contextmanager
def small_disk(place: Path, size_bytes: int) -> Iterator[None]:
    """Mount the disk at `place`, an empty folder, and unmount it at the end. Raises DiskRefused."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        raise DiskRefused(mounted.stderr.strip())
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place: Path) -> Path:
    """Write a file into the folder until its disk is full; returns the file."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as out:
        try:
            while True:
                out.write(bytes(4096))
        except OSError:
            return filler
