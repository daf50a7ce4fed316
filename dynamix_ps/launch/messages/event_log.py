"""The interface to which launcher and agents report the events of a run."""

from __future__ import annotations

from typing import Any, Protocol


class EventLog(Protocol):
    """The part of a Recorder that takes events."""

    def event(self, kind: str, **fields: Any) -> None: ...
