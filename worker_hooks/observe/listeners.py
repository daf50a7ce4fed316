"""Functions of the script, such as loggers, that get every line of a worker's records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dynamix_ps.run_record.json_lines import Line

Listener = Callable[[Line], object]


class Listeners:
    """Those of one worker. The first error of a listener is told and ends it."""

    def __init__(self, tell: Callable[[str, dict[str, Any]], None]) -> None:
        """`tell` records a `degraded` event."""
        self._tell = tell
        self._listeners: list[Listener] = []

    def add(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def hear(self, line: Line) -> None:
        """Give `line` to all of them."""
        for listener in tuple(self._listeners):
            try:
                listener(line)
            except Exception as error:  # whatever a logger of the script raises
                self._listeners.remove(listener)
                name = getattr(listener, "__name__", type(listener).__name__)
                self._tell("degraded", {"what": "listener", "detail": f"{name}: {type(error).__name__}: {error}"})
