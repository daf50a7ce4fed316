"""The check of single values that come in from outside."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dynamix_ps.messages import NAN
from dynamix_ps.rpc.refusals import MalformedMessageError

LARGEST_COUNT = 2**53  # the largest whole number that every reader of our JSON keeps exact
LARGEST_TEXT = 256


@dataclass(frozen=True, slots=True)
class Range:
    """What a number may be."""

    low: float
    high: float
    unknown: bool = False  # may be absent (NaN)


def count(name: str, value: int, low: int = 0) -> int:
    """A whole number. Raises MalformedMessageError."""
    if not low <= value <= LARGEST_COUNT:
        raise MalformedMessageError(f"{name}: got {value}, expected a whole number of {low}..2^53")
    return value


def number(name: str, message: Any, allowed: Range) -> float:
    """Field `name` of a message; NaN where it is absent and may be. Raises MalformedMessageError."""
    if allowed.unknown and not message.HasField(name):
        return NAN
    value: float = getattr(message, name)
    if math.isnan(value) and allowed.unknown:
        return NAN
    if not allowed.low <= value <= allowed.high:
        rule = f"expected a number of {allowed.low:g}..{allowed.high:g}"
        raise MalformedMessageError(f"{name}: got {value!r}, {rule}{' or NaN' if allowed.unknown else ''}")
    return value


def text(name: str, value: str) -> str:
    """A short text that is not empty. Raises MalformedMessageError."""
    if not 0 < len(value) <= LARGEST_TEXT:
        raise MalformedMessageError(f"{name}: got {len(value)} characters, expected 1..{LARGEST_TEXT}")
    return value


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """One of a few words. Raises MalformedMessageError."""
    if value not in allowed:
        raise MalformedMessageError(f"{name}: got {value[:LARGEST_TEXT]!r}, expected one of {', '.join(allowed)}")
    return value


def fill(message: Any, item: object, names: Iterable[str]) -> None:
    """Copy these attributes of `item` into the message; unknown (NaN) values are left out."""
    for name in names:
        value = getattr(item, name)
        if not math.isnan(value):
            setattr(message, name, value)
