"""Options of a command as one value."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

Command = TypeVar("Command", bound=Callable[..., Any])


def one_value(parameter: str, kind: type[Any]) -> Callable[[Command], Command]:
    """Give a command the options that are fields of the dataclass `kind` as one value, in `parameter`."""
    names = [field.name for field in fields(kind)]

    def decorated(command: Command) -> Command:
        @functools.wraps(command)
        def with_value(**options: Any) -> Any:
            value = kind(**{name: options.pop(name) for name in names})
            return command(**options, **{parameter: value})

        return with_value  # type: ignore[return-value]

    return decorated
