"""JSON that others have written: within its bounds, or a ValueError."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dynamix_ps.bounded_json import DEEPEST, built, value_in
from dynamix_ps.membership.messages import MayPush, Process, Status

TOO_DEEP = [
    "[" * 200_000,
    "[" * 200_000 + "]" * 200_000,
    "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1),
    '{"a":' * 500 + "1" + "}" * 500,
]
TOO_LARGE = ["1e400", '{"a": [-1e400]}', "9" * 20, "-" + "9" * 20, '{"a": {"b": 1' + "0" * 400 + "}}", "1" + "0" * 5000]


@pytest.mark.parametrize("text", [*TOO_DEEP, *TOO_LARGE, "NaN", "[Infinity]", "-Infinity", "{", "", "\x00"])
def test_what_is_beyond_the_bounds_is_refused(text: str) -> None:
    for raw in (text, text.encode()):
        with pytest.raises(ValueError):
            value_in(raw)


@pytest.mark.parametrize(
    "value", [1, -3.5, None, True, "1e400", ["9" * 30] * 40, {"a": [[1], {"b": 1e300}]}, 2**62, [[[]]] * 100]
)
def test_what_is_within_comes_as_it_is(value: Any) -> None:
    assert value_in(json.dumps(value)) == value


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(ValueError):
        value_in(b'"\xff"')


def test_a_dataclass_gets_the_types_that_it_declares() -> None:
    worker = {"role": "worker", "slot": 1, "incarnation": "a"}
    assert built("maypush", {"workers": [worker]}, MayPush) == MayPush(frozenset([Process("worker", 1, "a")]))
    assert built("status", {"generation": 1, "first_incomplete": None}, Status) == Status(1, None)


@pytest.mark.parametrize(
    "changed",
    [
        {"generation": "1"},
        {"generation": True},
        {"generation": 1.0},
        {"generation": 2**53 + 1},
        {"first_incomplete": []},
        {"more": 1},
    ],
)
def test_another_type_is_refused_with_its_name(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"status.*{next(iter(changed))}"):
        built("status", {"generation": 1, "first_incomplete": 1, **changed}, Status)


def test_a_missing_field_and_a_long_text_are_refused() -> None:
    with pytest.raises(ValueError, match="first_incomplete"):
        built("status", {"generation": 1}, Status)
    with pytest.raises(ValueError, match=r"process\.incarnation"):
        built("process", {"role": "worker", "slot": 0, "incarnation": "a" * 9}, Process, longest=8)
