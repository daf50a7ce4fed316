"""What the fields of lines hold, by their names: the same in lines of every kind. A line with another value is damaged.

So whoever reads a record can count, sort and compare what is in it. Fields that are not listed are shown, and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dynamix_ps.field_table import LARGEST_COUNT
from dynamix_ps.messages import WINDOW

_LARGEST_RANK = 65_535

_Check = Callable[[Any], bool]


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LARGEST_COUNT


def _rank(value: Any) -> bool:
    return type(value) is int and -1 <= value <= _LARGEST_RANK  # -1: of a role that is no worker


def _number(value: Any) -> bool:
    return type(value) in (int, float)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _table(value: Any) -> bool:
    return isinstance(value, dict)


def _or_null(check: _Check) -> _Check:
    return lambda value: value is None or check(value)


def _list_of(check: _Check) -> _Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _either(one: _Check, other: _Check) -> _Check:
    return lambda value: one(value) or other(value)


_KINDS: Mapping[type, _Check] = {
    int: _count,
    float: _or_null(_number),  # null: NaN
    str: _text,
    bool: lambda value: isinstance(value, bool),
}
_NAMES: Mapping[_Check, str] = {
    _rank: "rank slot",
    _count: "iteration version trained_samples graphs later planned restarts round generation min_workers back_to",
    _or_null(_count): "samples",
    _number: "time_s ended_s took_s waited_s",
    _or_null(_number): "train_s trained_s decision_ms reward restart_in_s",
    _list_of(_count): "batch_sizes entered missing reported ranks",
    _or_null(_list_of(_count)): "proposed",
    _list_of(_text): "missing_servers roles",
    _list_of(_table): "flows links",
    _either(_count, _list_of(_count)): "workers",
    _either(_count, _list_of(_either(_rank, _table))): "servers",
    _text: "kind what role name reason error how host comm policy incarnation address",
    _or_null(_text): "comm_version checkpoint resume",
    _table: "values higher_is_better system",
}
_CHECKS = {name: _KINDS[field.kind] for name, field in WINDOW.items()}
_CHECKS |= {name: check for check, names in _NAMES.items() for name in names.split()}


def fits(line: Mapping[str, Any]) -> bool:
    """Whether every field that is listed holds what it should."""
    return all(name not in _CHECKS or _CHECKS[name](value) for name, value in line.items())
