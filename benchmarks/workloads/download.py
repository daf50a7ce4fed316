"""Downloads the published files of a data set into the cache once, and checks their sha256."""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import os
import sys
import time
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dynamix_ps.errors import DataError

CONNECT_TIMEOUT_S = 8.0  # also the longest pause within a transfer
FILE_LIMIT_S = 300.0
_CHUNK_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One published file."""

    url: str
    sha256: str

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


def sha256_of(file: Path) -> str:
    """Raises OSError."""
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def fetch(files: Iterable[RemoteFile], folder: Path) -> None:
    """Download all files that `folder` lacks. Safe for several workers at once.

    Raises DataError if a file is not available, takes longer than FILE_LIMIT_S or has another checksum.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for file in files:
                if not (folder / file.name).exists():
                    _fetch_one(file, folder / file.name)
    except OSError as error:
        raise DataError(
            f"cannot keep downloads in {folder}: {error}; set DYNAMIX_CACHE to a writable folder"
        ) from error


def _fetch_one(file: RemoteFile, target: Path) -> None:
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    print(f"downloading {file.url}", file=sys.stderr, flush=True)
    try:
        digest = _transfer(file.url, partial)
        if digest != file.sha256:
            raise DataError(
                f"{file.url}: wrong checksum: got sha256 {digest} over {partial.stat().st_size:,} bytes, "
                f"expected {file.sha256}; try again, or put a good {file.name} into {target.parent}"
            )
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def _transfer(url: str, target: Path) -> str:
    deadline = time.monotonic() + FILE_LIMIT_S
    digest = hashlib.sha256()
    with target.open("wb") as out:
        try:
            with urllib.request.urlopen(url, timeout=CONNECT_TIMEOUT_S) as reply:
                while chunk := reply.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    out.write(chunk)
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"not complete after {FILE_LIMIT_S:.0f} s")
        except (OSError, http.client.HTTPException) as error:
            raise DataError(f"cannot download {url}: {error}") from error
    return digest.hexdigest()
