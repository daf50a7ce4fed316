"""Shared-memory segments that BytePS leaves behind when a worker is killed."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path("/dev/shm")


def remove_segments(prefix: str) -> list[str]:
    """Remove every segment whose name begins with `prefix` (BYTEPS_SHM_PREFIX); returns their names.

    Raises ValueError for an empty prefix, which would remove the segments of all programs.
    """
    if not prefix:
        raise ValueError(
            "remove_segments needs a prefix that is not empty: an empty one fits the segments of all programs"
        )
    names = sorted(path.name for path in _FOLDER.iterdir() if path.name.startswith(prefix)) if _FOLDER.is_dir() else []
    for name in names:
        (_FOLDER / name).unlink(missing_ok=True)
    return names
