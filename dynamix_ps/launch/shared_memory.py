"""Shared-memory segments that BytePS leaves behind when a worker is killed."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path("/dev/shm")


def remove_segments(prefix: str) -> list[str]:
    """Remove every segment whose name begins with `prefix` (BYTEPS_SHM_PREFIX); returns their names.

    Raises ValueError for an empty prefix, which would take everybody's.
    """
    if not prefix:
        raise ValueError("remove_segments needs a prefix that is not empty, or it would remove everybody's segments")
    names = sorted(path.name for path in _FOLDER.iterdir() if path.name.startswith(prefix)) if _FOLDER.is_dir() else []
    for name in names:
        (_FOLDER / name).unlink(missing_ok=True)
    return names
