"""Appending JSON lines to a file of the run folder."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

logger = logging.getLogger("dynamix")


class JsonLines:
    """One JSON object per line. Writing never raises: a disk that fails is said once, and nothing is written then.

    Not thread safe. File and folder are made when the first line is written.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._out: IO[bytes] | None = None
        self._failed = False

    def write(self, line: Mapping[str, Any]) -> None:
        """Append one line, which is out of this process then; NaN and infinities become null."""
        if self._failed:
            return
        try:
            if self._out is None:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                self._out = self._file.open("ab", buffering=0)
            self._out.write((json.dumps(plain(line), allow_nan=False) + "\n").encode())
        except OSError as error:
            self._failed = True
            logger.warning("cannot write %s (%s); its lines are lost from here on", self._file, error)


def fields_of(item: Any) -> dict[str, Any]:
    """The fields of a slotted dataclass, as they are; `plain` takes care of what is inside."""
    return {name: getattr(item, name) for name in item.__slots__}


def plain(value: Any) -> Any:
    """Values as JSON has them: NaN and infinities become null, tuples lists, dataclasses objects."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (int, str)):  # the most frequent ones first: a line may hold thousands
        return value
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return plain(fields_of(value)) if dataclasses.is_dataclass(value) else value
