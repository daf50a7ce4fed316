"""Reads what a checkpoint holds field by field: a CheckpointError names the first that is not what it should be."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from dynamix_ps.errors import CheckpointError

LONGEST_TEXT = 80  # characters of a wrong value in a message


def wrong(where: str, got: object, expected: str) -> CheckpointError:
    """The error for a field that has another value than it may have."""
    text = repr(got)
    short = text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}..."
    return CheckpointError(f"{where}: got {short}, expected {expected}")


def read_table(found: object, where: str, names: Collection[str]) -> dict[str, Any]:
    """The fields of a dict that has exactly these names. Raises CheckpointError."""
    if not isinstance(found, dict):
        raise wrong(where, found, f"a dict with {', '.join(names)}")
    missing = [name for name in names if name not in found]
    unknown = [name for name in found if name not in names]
    if missing or unknown:
        parts = [f"has no {missing[0]!r}"] if missing else []
        parts += [f"has the unknown field {unknown[0]!r}"] if unknown else []
        raise CheckpointError(f"{where}: {' and '.join(parts)}, expected {', '.join(names)}")
    return found


def read_list(found: object, where: str, length: int | None = None) -> list[Any]:
    """A list or tuple, of this length if one is given. Raises CheckpointError."""
    if not isinstance(found, (list, tuple)):
        raise wrong(where, found, "a list")
    if length is not None and len(found) != length:
        raise CheckpointError(f"{where}: got {len(found)} values, expected {length}")
    return list(found)


def read_whole(found: object, where: str, least: int = 0, most: int | None = None) -> int:
    """A whole number in least..most. Raises CheckpointError."""
    if type(found) is not int or found < least or (most is not None and found > most):
        expected = f"a whole number from {least}" + ("" if most is None else f" to {most}")
        raise wrong(where, found, expected)
    return found


def read_number(found: object, where: str, least: float = -math.inf, most: float = math.inf) -> float:
    """A number in least..most; NaN is none. Raises CheckpointError."""
    if type(found) not in (int, float) or not least <= found <= most:  # type: ignore[operator]
        bounded = math.isfinite(least) or math.isfinite(most)
        raise wrong(where, found, f"a number from {least:g} to {most:g}" if bounded else "a number")
    return float(found)  # type: ignore[arg-type]


def read_word(found: object, where: str, words: Collection[str]) -> str:
    """One of these words. Raises CheckpointError."""
    if found not in words:
        raise wrong(where, found, f"one of {', '.join(words)}")
    return str(found)
