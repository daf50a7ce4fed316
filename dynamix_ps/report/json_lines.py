"""Appending JSON lines to a file of the run folder."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

logger = logging.getLogger("dynamix")


class JsonLines:
    """One JSON object per line. Writing never raises: a disk that fails is said once, and nothing is written then.

    Not thread safe. The folder is made when the first line is written.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._failed = False

    def write(self, line: Mapping[str, Any]) -> None:
        """Append one line; NaN and infinities become null."""
        if self._failed:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(plain(line), allow_nan=False) + "\n")
        except OSError as error:
            self._failed = True
            logger.warning("cannot write %s (%s); its lines are lost from here on", self._file, error)


def plain(value: Any) -> Any:
    """Values as JSON has them: NaN and infinities become null, tuples lists."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
