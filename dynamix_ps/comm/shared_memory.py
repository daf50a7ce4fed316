"""Left-over shared-memory segments (stand-in until the data plane's own module is there)."""

from __future__ import annotations

from pathlib import Path


def remove_segments(prefix: str) -> list[str]:
    """Remove all segments whose name begins with `prefix`; returns their names."""
    removed = []
    for path in Path("/dev/shm").glob(f"{prefix}*"):
        path.unlink(missing_ok=True)
        removed.append(path.name)
    return removed
