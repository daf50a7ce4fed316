"""Writes tables, events.jsonl and TensorBoard curves from what the roles append to the run folder."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import IO, Any

from dynamix_ps.config.schema import Config
from dynamix_ps.report.tensorboard import NOT_INSTALLED, TensorBoard
from dynamix_ps.run_record.json_lines import UNUSABLE, Line
from dynamix_ps.run_record.model import PlanState
from dynamix_ps.run_record.role_files import RoleFiles
from dynamix_ps.run_record.run_folder import RunFolder
from dynamix_ps.run_record.run_state import RunState
from dynamix_ps.run_record.tables import Tables

_NOT_EVENTS = frozenset({"window", "update", "role", "links", "paused", "resumed"})


class Recorder:
    """Call `poll` every second or so while roles run, and `close` when all have ended."""

    def __init__(self, folder: RunFolder, config: Config, clock: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self.config = config
        policy = config.policy.name if config.mode == "adapt" else f"{config.policy.name}, {config.mode}"
        workers = config.cluster.workers
        hosts = [worker.host or "" for worker in workers]
        self.state = RunState(len(workers), folder.path.name, policy, config.batch.counted, hosts, config.later)
        self._clock = clock
        self._files = RoleFiles(folder)
        self._damaged = 0
        self._plans_written: set[int] = set()
        self._observed_written = 0
        self._events: IO[str] = folder.events_file.open("a", encoding="utf-8")
        self._tables = Tables(folder, len(config.cluster.workers))
        charts = folder.tensorboard_dir if config.metrics.tensorboard else None
        self._tensorboard = TensorBoard(charts, self._tensorboard_failed)

    def event(self, kind: str, **fields: Any) -> None:
        """Record an event of the launcher itself."""
        line = {"kind": kind, **fields}
        self.state.apply("launcher", line)
        self._write_event({"time_s": self._clock(), "source": "launcher", **line})

    def poll(self) -> None:
        """Take in everything that was written since the last call. A damaged line is an event, never an error.

        Raises OSError if the record cannot be written. The state has all lines even so: the launcher acts on them.
        """
        problem: OSError | None = None
        for source, _, line in self._files.read():
            try:
                self._take(source, line)
            except OSError as error:
                problem = problem or error
        if problem is not None:
            raise problem
        if self._files.damaged() > self._damaged:
            self.event("damaged_lines", count=self._files.damaged() - self._damaged)
            self._damaged = self._files.damaged()
        self._write_plans()
        self._tensorboard.flush()

    def _take(self, source: str, line: Line) -> None:
        try:
            self.state.apply(source, line)
            self._tables.add(line)
        except UNUSABLE as error:
            self.event("unreadable_line", of=source, line_kind=line["kind"], error=repr(error))
            return
        self._tensorboard.add(line, self.state)
        if line["kind"] not in _NOT_EVENTS:
            self._write_event({"time_s": None, **line, "source": source})

    def close(self) -> None:
        """Take in the rest, write the plans that were never applied, and close the files."""
        self.poll()
        for version in sorted(self.state.arbitrator.plans.keys() - self._plans_written):
            self._write_plan(self.state.arbitrator.plans[version], "pending")
        self._tensorboard.close()
        self._events.close()
        self._tables.close()

    def _tensorboard_failed(self, detail: str) -> None:
        self.event("degraded", what="plots" if detail == NOT_INSTALLED else "tensorboard", detail=detail)

    def _write_event(self, event: Line) -> None:
        self.state.note(event)
        self._events.write(json.dumps(event) + "\n")
        self._events.flush()

    def _write_plans(self) -> None:
        """Write plans that are applied on all workers, or superseded by one that is."""
        arbitrator = self.state.arbitrator
        newest = max((plan.version for plan in arbitrator.applied_plans()), default=0)
        for version in sorted(arbitrator.plans.keys() - self._plans_written):
            if version <= newest:
                whole = arbitrator.plans[version] in arbitrator.applied_plans()
                self._write_plan(arbitrator.plans[version], "applied" if whole else "superseded")
        for plan in arbitrator.observed[self._observed_written :]:
            self._tables.plan(plan, "observed")
        self._observed_written = len(arbitrator.observed)

    def _write_plan(self, plan: PlanState, status: str) -> None:
        self._tables.plan(plan, status)
        self._plans_written.add(plan.version)
