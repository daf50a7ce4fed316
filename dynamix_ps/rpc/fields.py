"""Checks of single values that are received."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from dynamix_ps.field_table import LARGEST_COUNT, Field, Quantity
from dynamix_ps.messages import NAN
from dynamix_ps.rpc.refusals import MalformedMessageError

LARGEST_TEXT = 256  # characters


def count(name: str, value: int, low: float = 0) -> int:
    """A whole number. Raises MalformedMessageError."""
    if not low <= value <= LARGEST_COUNT:
        raise MalformedMessageError(f"{name}: got {value}, expected a whole number of {low}..2^53")
    return value


def number(name: str, value: float | None, allowed: Quantity, may_be_unknown: bool = False) -> float:
    """A number; NaN where it is absent (None) and may be. Raises MalformedMessageError."""
    if value is None or math.isnan(value):
        if may_be_unknown:
            return NAN
    elif allowed.low <= value <= allowed.high:
        return value
    got = "nothing" if value is None else repr(value)
    rule = f"expected a number of {allowed.low:g}..{allowed.high:g}{' or NaN' if may_be_unknown else ''}"
    raise MalformedMessageError(f"{name}: got {got}, {rule}")


def numbers(fields: Iterable[Field], values: Mapping[str, float]) -> dict[str, float]:
    """The value of every field, by name; NaN where it is absent and may be. Other names in `values` are ignored.

    Raises:
        MalformedMessageError: a value is out of its range, or one that cannot be unknown is absent.
    """
    return {
        field.name: number(field.name, values.get(field.name), field.metric.quantity, field.may_be_unknown)
        for field in fields
    }


def known_values(item: object, fields: Iterable[Field]) -> dict[str, float]:
    """Those of the fields that are known, by name."""
    values = ((field.name, getattr(item, field.name)) for field in fields)
    return {name: value for name, value in values if not math.isnan(value)}


def text(name: str, value: str) -> str:
    """A short text that is not empty and can be printed. Raises MalformedMessageError."""
    if not 0 < len(value) <= LARGEST_TEXT:
        raise MalformedMessageError(f"{name}: got {len(value)} characters, expected 1..{LARGEST_TEXT}")
    if not value.isprintable():
        raise MalformedMessageError(f"{name}: got {value!r}, expected characters that can be printed")
    return value


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """One of a few words. Raises MalformedMessageError."""
    if value not in allowed:
        raise MalformedMessageError(f"{name}: got {value[:LARGEST_TEXT]!r}, expected one of {', '.join(allowed)}")
    return value
