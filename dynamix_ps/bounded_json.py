"""JSON of files and messages that anybody may have written. Pure.

What is read is no deeper than `DEEPEST` and has no number that 64 bits do not hold, so that whoever computes with it
needs to expect no overflow. Whoever reads the bytes bounds their number.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import types
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

DEEPEST = 16  # objects and lists within each other; those that roles write have four
_LARGEST_WHOLE = 2**63
_LARGEST_COUNT = 2**53
_MAY_BE_LARGE = re.compile(r"\d{19}|[eE]\+?\d{3}")  # a number, or a part of a text


def value_in(raw: str | bytes) -> Any:
    """The value. Raises ValueError if it is no JSON, or beyond the bounds."""
    try:
        text = raw if isinstance(raw, str) else raw.decode()
        value = json.loads(text, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("objects or lists are nested too deeply") from error
    if text.count("[") + text.count("{") > DEEPEST and _is_deeper(value, DEEPEST):
        raise ValueError(f"objects or lists are nested deeper than {DEEPEST} levels")
    if _MAY_BE_LARGE.search(text) and _has_too_large(value):
        raise ValueError("a number is too large")
    return value


def built(name: str, value: Any, wanted: Any, longest: int | None = None) -> Any:
    """A value of JSON as the type that a dataclass declares: a whole number that counts, a text, one of a few words,
    another dataclass, nothing, or several of these.

    Args:
        name: for the error.
        longest: characters of a text; None: any number of them.

    Raises:
        ValueError: it is something else.
    """
    origin, parts = get_origin(wanted), get_args(wanted)
    if origin in (Union, types.UnionType):
        return None if value is None else built(name, value, parts[0], longest)
    if dataclasses.is_dataclass(wanted) and isinstance(value, dict):
        return _object(name, value, wanted, longest)
    if origin in (frozenset, tuple) and isinstance(value, list):
        return origin(built(name, one, parts[0], longest) for one in value)
    if wanted is int and type(value) is int:
        if 0 <= value <= _LARGEST_COUNT:
            return value
        raise ValueError(f"{name}: got {value}, expected a whole number of 0..2^53")
    if isinstance(value, str) and (
        value in parts if origin is Literal else wanted is str and (longest is None or len(value) <= longest)
    ):
        return value
    raise ValueError(f"{name}: got {str(value)[:256]!r}, expected {wanted}")


def _object(name: str, fields: Mapping[str, Any], kind: Any, longest: int | None) -> Any:
    hints = _types_of(kind)
    if unknown := fields.keys() - hints.keys():
        raise ValueError(f"{name}: got {', '.join(sorted(unknown))[:256]}, expected {', '.join(hints)}")
    values = {key: built(f"{name}.{key}", value, hints[key], longest) for key, value in fields.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from error


@lru_cache
def _types_of(kind: type[Any]) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")


def _inside(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else None


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether more than so many objects and lists are within each other."""
    inside = _inside(value)
    return inside is not None and (levels == 0 or any(_is_deeper(item, levels - 1) for item in inside))


def _has_too_large(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, int):
        return abs(value) >= _LARGEST_WHOLE
    inside = _inside(value)
    return inside is not None and any(map(_has_too_large, inside))
