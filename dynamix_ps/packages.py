"""Which Python packages are installed."""

from __future__ import annotations

import importlib.metadata


def installed_version(distribution: str) -> str | None:
    """None: it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
