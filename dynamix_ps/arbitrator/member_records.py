"""What the coordinator of an elastic job has recorded, on disk: one JSON object per line, appended.

A restarted arbitrator reads it back. A line that a crash has cut off was never told to anybody, so it is dropped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from dynamix_ps.membership.journal import Record, as_plain, from_plain


class MemberRecords:
    """The file of one job.

    Attributes:
        earlier: records of earlier arbitrators of this job, in order.
    """

    def __init__(self, file: Path) -> None:
        """Raises OSError if it cannot be opened, ValueError if it holds something else."""
        file.parent.mkdir(parents=True, exist_ok=True)
        whole = file.read_bytes() if file.exists() else b""
        complete = whole[: whole.rfind(b"\n") + 1]
        self.earlier = [from_plain(json.loads(line)) for line in complete.splitlines()]
        self._descriptor = os.open(file, os.O_WRONLY | os.O_CREAT, 0o644)
        os.ftruncate(self._descriptor, len(complete))
        os.lseek(self._descriptor, len(complete), os.SEEK_SET)

    def append(self, records: Iterable[Record]) -> None:
        """Write them, and return when they are on disk. Raises OSError: then nobody may hear of them."""
        lines = "".join(json.dumps(as_plain(record)) + "\n" for record in records).encode()
        while lines:
            lines = lines[os.write(self._descriptor, lines) :]
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)
