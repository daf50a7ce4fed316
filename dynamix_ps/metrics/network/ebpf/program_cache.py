"""Keeps compiled programs in the user's cache folder, so that a machine compiles once for each kernel.

What is read there goes into the kernel, so a file counts only if this user alone can have written it. Its name is a
digest of everything that it is made from, and it begins with a digest of what it holds.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dynamix_ps.config import variables
from dynamix_ps.config.kept_files import read_kept, write_kept
from dynamix_ps.metrics.network.ebpf import btf, compiler, program
from dynamix_ps.metrics.network.ebpf.bcc_loader import HEADERS
from dynamix_ps.metrics.network.ebpf.program import Program

_KEPT = 16  # files: containers have a pid namespace each, and a home folder may serve many hosts
_NICE = 10


def kernel_program(flags: Sequence[str]) -> Program:
    """The program for the running kernel, compiled with these flags if there is none yet.

    Raises:
        SourceError: it cannot be compiled here.
    """
    flags = [*compiler.machine_flags(), *flags]
    types = btf.kernel_types()
    file = Path(variables.cache_dir()) / "probe" / _digest(types, *_parts(), *map(str.encode, flags))
    found = _read(file)
    if found is None:
        found = _in_background(lambda: compiler.compile_program(btf.Btf(types), flags))
        with contextlib.suppress(OSError):  # the next one compiles again
            _write(file, found)
    return found


def _in_background(work: Callable[[], Program]) -> Program:
    """Do this with a low priority, as what needs the result does not wait. That is one of a thread, and stays."""
    with ThreadPoolExecutor(1, initializer=os.nice, initargs=(_NICE,)) as pool:
        return pool.submit(work).result()


def _parts() -> list[bytes]:
    """All else that a program is made from."""
    modules = [Path(module.__file__ or "") for module in (btf, compiler, program)]
    files = [compiler.SOURCE, *sorted(HEADERS.rglob("*.h")), *modules]
    return [platform.machine().encode(), *(file.read_bytes() for file in files)]


def _digest(*parts: bytes) -> str:
    """Of the parts, one after the other, with their lengths."""
    found = hashlib.sha256()
    for part in parts:
        found.update(b"%d:" % len(part))
        found.update(part)
    return found.hexdigest()


def _read(file: Path) -> Program | None:
    """None if there is none that is whole and of this user alone."""
    try:
        digest, _, text = read_kept(file).partition(b"\n")
        return Program.from_json(text) if digest.decode() == _digest(file.name.encode(), text) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write(file: Path, made: Program) -> None:
    """Raises OSError."""
    text = made.to_json()
    write_kept(file, _digest(file.name.encode(), text).encode() + b"\n" + text, _KEPT)
