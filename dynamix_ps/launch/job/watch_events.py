"""What the watch of the arbitrator writes, as events of the run."""

from __future__ import annotations

from dynamix_ps.report.recorder import Recorder
from dynamix_ps.run_record.json_lines import UNUSABLE, JsonLinesTail


class WatchEvents:
    """Call `record` whenever the recorder polls."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._watch = JsonLinesTail(recorder.folder.arbitrator_dir / "watch.jsonl")

    def record(self) -> None:
        """Record what is new. Raises OSError."""
        for line in self._watch.read():
            kind = line.pop("kind")
            line.pop("time_s", None)
            try:
                self._recorder.event(kind, **line)
            except UNUSABLE as error:
                self._recorder.event("unreadable_line", of="scheduler", line_kind=kind, error=repr(error))
            if kind == "arbitrator_given_up":
                detail = "it died too often and is not started again"
                self._recorder.event("degraded", what="arbitrator", detail=detail)
