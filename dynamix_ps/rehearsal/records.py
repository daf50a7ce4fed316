"""What the workers of a rehearsal write and report: the files of a run folder, as those of a real cluster."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from dynamix_ps.messages import Plan, WindowRecord, fields_of
from dynamix_ps.rehearsal.local_arbitrator import LocalArbitrator
from dynamix_ps.rehearsal.simulated_cluster import SimulatedCluster
from dynamix_ps.run_record.iteration_mark import IterationMark
from dynamix_ps.run_record.json_lines import JsonLines
from dynamix_ps.run_record.run_folder import RunFolder
from worker_hooks.observe.reporter import Listener, Listeners, Missing

logger = logging.getLogger("dynamix")
_OF_EVERY_WORKER = frozenset({"started", "plan_applied", "finished", "paused", "resumed"})


class Records:
    """The reporter of a rehearsal, for all workers. Times in it are simulated; it has no thread.

    Attributes:
        iterations: complete ones so far.
    """

    iterations = 0

    def __init__(self, folder: RunFolder, cluster: SimulatedCluster, began_s: float) -> None:
        """`began_s`: unix time of second 0 of the simulation."""
        n_workers = len(cluster.spent)
        self._folder, self._cluster, self._began_s = folder, cluster, began_s
        self._lines = [JsonLines(folder.worker_file(rank)) for rank in range(n_workers)]
        self._role_lines: dict[str, JsonLines] = {}
        self._listeners = Listeners(self.tell)  # of worker 0
        self._mark = IterationMark(folder.iteration_file(0))
        self._arbitrator: LocalArbitrator | None = None
        self._window: list[WindowRecord] = []
        self._plan: Plan | None = None

    def unix_s(self) -> float:
        """The simulated time of day."""
        return self._began_s + self._cluster.time_s

    def connect(self, arbitrator: LocalArbitrator, plan: Plan) -> None:
        """From now on `arbitrator` decides. Training begins with `plan`."""
        self._arbitrator = arbitrator
        self._plan = arbitrator.register(plan, len(self._lines))

    def started(self, batch_sizes: Sequence[int], **fields: Any) -> None:
        """Training begins with these sizes."""
        for rank, size in enumerate(batch_sizes):
            self._write(rank, "started", {"batch_size": size, **fields})

    def listen(self, listener: Listener) -> None:
        self._listeners.add(listener)

    def begin_window(self) -> None:
        """What kernel and machine count is computed for the iterations of a window alone."""

    def event(self, kind: str, **fields: Any) -> None:
        for rank in range(len(self._lines) if kind in _OF_EVERY_WORKER else 1):
            own = {"samples": int(self._cluster.spent[rank])} if kind == "finished" else {}
            self._write(rank, kind, fields | own)

    def window(self, record: WindowRecord) -> None:
        """The records of all workers come one after the other; with the last of them the window is decided."""
        self._window.append(record)
        if len(self._window) < len(self._lines):
            return
        (records, reports), self._window = self._cluster.complete(self._window, self.unix_s()), []
        for one in records:
            self._write(one.rank, "window", fields_of(one))
        for report in reports:
            lines = self._role_lines.setdefault(report.name, JsonLines(self._folder.role_file(report.name)))
            lines.write({"kind": "role", **fields_of(report)})
        if self._arbitrator is not None:
            self._plan = self._arbitrator.decide(records, reports)

    def newest_plan(self) -> Plan | None:
        return self._plan

    def progress(self, iteration: int) -> None:
        """Nobody waits for it."""

    def completed(self, iterations: int) -> None:
        self.iterations = iterations
        self._mark.write(iterations)

    def missing(self, iteration: int) -> Missing:
        return Missing((), (), "no worker is missing: this process computes for all")

    def tell(self, kind: str, fields: dict[str, Any]) -> None:
        if kind == "degraded":
            logger.warning("rehearsal: %s: %s", fields["what"], fields["detail"])
        self.event(kind, **fields)

    def close(self, room_s: float = 0.0) -> None:
        self._mark.close()
        if self._arbitrator is not None:
            self._arbitrator.close()
            self._arbitrator = None

    def _write(self, rank: int, kind: str, fields: dict[str, Any]) -> None:
        line = {"kind": kind, "time_s": self.unix_s(), "rank": rank, **fields}
        self._lines[rank].write(line)
        if rank == 0:
            self._listeners.hear(line)
