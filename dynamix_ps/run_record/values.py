"""Typed values from JSON lines. The files have null for NaN, which JSON does not have."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Kind = TypeVar("Kind", bound="DataclassInstance")


def number(value: Any) -> float:
    """A JSON number; null becomes NaN. Raises TypeError for anything else."""
    if value is None:
        return math.nan
    if type(value) in (float, int):
        return float(value)
    raise TypeError(f"got {value!r:.100}, expected a number")


def filled(kind: type[Kind], line: Mapping[str, Any]) -> Kind:
    """A dataclass from the values named like its fields. Others are ignored; a field with a default may be absent.

    Raises TypeError or ValueError if a value has the wrong type, or a field without a default is absent.
    """
    values: dict[str, Any] = {}
    for name, hint in _hints(kind).items():
        if name in line:
            value = line[name]
            if hint is float:
                value = number(value)
            elif hint in (int, str, bool):
                if type(value) is not hint:
                    raise TypeError(f"{name}: got {value!r:.100}, expected {hint.__name__}")
            elif dataclasses.is_dataclass(hint) and isinstance(hint, type):
                value = filled(hint, value)
            values[name] = value
    return kind(**values)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def known_sum(values: Iterable[float]) -> float:
    """The sum of what is known; NaN if nothing is."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) if known else math.nan


def ratio(part: float, whole: float) -> float:
    """part / whole; NaN where either is unknown or the whole is not positive."""
    return part / whole if whole > 0 else math.nan
