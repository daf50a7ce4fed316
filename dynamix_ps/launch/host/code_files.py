"""The folder of a job's code, and the Python files there, which must be the same on all hosts."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

EXCLUDED = (".git", ".venv", "__pycache__", "runs")  # folders that are no code
_MOST_ENTRIES = 50_000
_MOST_FILES = 5_000


class TooManyFilesError(Exception):
    """A folder has too many files to compare."""


def code_folder(command: Sequence[str], cwd: Path, home: Path) -> Path:
    """The folder from which the job is launched, or the folder of its script where the script is elsewhere.

    It is the script's folder too where the job is launched from `home` or from a folder above it. Pure; all paths but
    those in `command` are absolute.
    """
    script = script_of(command)
    if script is None:
        return cwd
    folder = Path(os.path.normpath(cwd / script)).parent
    return cwd if folder.is_relative_to(cwd) and not home.is_relative_to(cwd) else folder


def script_of(command: Sequence[str]) -> str | None:
    """The Python script in a command, as the command has it; None for another command, or a module."""
    runs_python = bool(command) and os.path.basename(command[0]).startswith("python")
    return command[1] if runs_python and len(command) > 1 and command[1].endswith(".py") else None


def python_files(folder: Path) -> dict[str, str]:
    """Digest of every Python file in a folder by its relative path, without hidden folders and environments.

    Empty for a folder that does not exist. Raises TooManyFilesError.
    """
    digests: dict[str, str] = {}
    entries = 0
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if _may_hold_code(Path(place, name)))
        entries += len(folders) + len(files)
        for name in sorted(files):
            if name.endswith(".py"):
                path = Path(place, name)
                digests[path.relative_to(folder).as_posix()] = _digest(path)
        if entries > _MOST_ENTRIES or len(digests) > _MOST_FILES:
            raise TooManyFilesError(f"{folder} has more than {_MOST_FILES} Python files or {_MOST_ENTRIES} files")
    return digests


def digest_of_all(digests: dict[str, str]) -> str:
    """One digest for all files, with their paths."""
    return _short("".join(f"{path} {digest}\n" for path, digest in sorted(digests.items())).encode())


def _may_hold_code(folder: Path) -> bool:
    named_so = folder.name not in EXCLUDED and not folder.name.startswith(".")
    return named_so and not (folder / "pyvenv.cfg").exists()


def _digest(path: Path) -> str:
    try:
        return _short(path.read_bytes())
    except OSError as error:
        return error.strerror or "unreadable"


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
