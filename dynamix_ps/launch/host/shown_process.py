"""How /proc shows a process that was forked: with a command line and an environment of its own.

A forked process has those of its parent. Both lie in the memory of the process, where the kernel reads them; the
process may write there. The environment is what tells the processes of a run apart (release.py).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

_ROOM = "ROOM_OF_FORKS"  # a variable that makes room in the environment of the parent
_ARGUMENTS = slice(45, 47)  # begin and end, in /proc/PID/stat behind the name of the program
_ENVIRONMENT = slice(47, 49)


def with_room(environ: Mapping[str, str], room_bytes: int = 32_768) -> dict[str, str]:
    """An environment for a parent whose children may have larger ones."""
    return {**environ, _ROOM: "." * room_bytes}


def has_room(environ: Mapping[str, str]) -> bool:
    """Whether a child of this process may have this environment."""
    begin, end = map(int, _numbers()[_ENVIRONMENT])
    return len(_shown(environ)) <= end - begin


def show_as(argv: Sequence[str], environ: Mapping[str, str]) -> None:
    """Write both into this process, as far as there is room.

    `os.environ` must have been set anew, so that no variable lies where the kernel reads.
    """
    numbers = _numbers()
    _write(numbers[_ARGUMENTS], _joined(argv))
    _write(numbers[_ENVIRONMENT], _shown(environ))


def _numbers() -> list[str]:
    return Path("/proc/self/stat").read_text().rpartition(")")[2].split()


def _shown(environ: Mapping[str, str]) -> bytes:
    return _joined([f"{name}={value}" for name, value in environ.items()])


def _joined(texts: Sequence[str]) -> bytes:
    return b"".join(os.fsencode(text) + b"\0" for text in texts)


def _write(place: Sequence[str], data: bytes) -> None:
    begin, end = map(int, place)
    data = data[: end - begin - 1]
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, data, len(data))
