"""From which checkpoint a run has gone on, and where its script has saved one. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dynamix_ps.run_record.json_lines import Line


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where the training was when the run went on with it."""

    checkpoint: str | None  # None: the script's own file
    iteration: int
    epoch: int
    samples: int | None  # of all workers until then; None: not known


class Resumption:
    """Built from the lines of launcher and workers.

    Attributes:
        begin: None: the run has begun anew.
        saved: the newest checkpoint in a file that the script names.
    """

    def __init__(self) -> None:
        self.begin: ResumePoint | None = None
        self.saved: str | None = None
        self._given: str | None = None

    def launched(self, line: Line) -> None:
        """The launcher may have been given a checkpoint."""
        self._given = line.get("resume")

    def went_on(self, line: Line) -> None:
        """A worker has read a checkpoint, which on its host may be in another folder than the launcher's."""
        read = line["checkpoint"]
        file = read if read is None or self._given is None else str(Path(self._given).with_name(Path(read).name))
        self.begin = ResumePoint(file, line["iteration"], line["epoch"], line["samples"])

    def was_saved(self, line: Line) -> None:
        self.saved = line["checkpoint"]
