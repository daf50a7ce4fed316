"""Carries events and records from the training thread to the run folder and to the arbitrator.

The training thread only puts values into a queue and reads the newest plan from an attribute. If the disk or the
arbitrator fails, training goes on, and the reporter says so once.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import dynamix_ps.rpc  # noqa: F401  # before a script loads gRPC, which breaks forked children otherwise
from dynamix_ps.errors import DEGRADED
from dynamix_ps.messages import PeerStatus, Plan, Registration, RoleReport, WindowRecord, fields_of

if TYPE_CHECKING:
    from dynamix_ps.rpc.access import ArbitratorAccess
    from dynamix_ps.rpc.client import ArbitratorClient
    from dynamix_ps.rpc.plan_rules import Bounds
    from dynamix_ps.run_record.run_folder import RunFolder
    from worker_hooks.observe.telemetry import Telemetry
    from worker_hooks.observe.worker_files import WorkerFiles

logger = logging.getLogger("dynamix")
CLOSE_S = 3.0

Listener = Callable[[dict[str, Any]], object]  # a function of the script, such as a logger, that gets every line


class Missing(NamedTuple):
    """Who keeps a sum from being complete: ranks of workers, names of servers, and a sentence."""

    ranks: tuple[int, ...]
    servers: tuple[str, ...]
    sentence: str


class Reporting(Protocol):
    """Where a training tells what happens, and learns the newest plan. No call blocks or raises, but for `close`."""

    def listen(self, listener: Listener) -> None:
        """Give `listener` every line from now on."""

    def begin_window(self) -> None:
        """A window begins here: what was counted so far is in none."""

    def event(self, kind: str, **fields: Any) -> None:
        """Record an event."""

    def window(self, record: WindowRecord) -> None:
        """Hand over a window record."""

    def newest_plan(self) -> Plan | None: ...

    def progress(self, iteration: int) -> None:
        """Report in how many iterations the gradients are sent."""

    def completed(self, iterations: int) -> None:
        """So many iterations are complete."""

    def missing(self, iteration: int) -> Missing:
        """Who keeps the sum of `iteration` from being complete, as far as known."""

    def tell(self, kind: str, fields: dict[str, Any]) -> None:
        """Record a `degraded` or `recovered` event; log the former as a warning."""

    def close(self, room_s: float = 0.0) -> None:
        """Write all that is left, and leave the arbitrator."""


class Listeners:
    """Those of one worker. The first error of a listener is told and ends it."""

    def __init__(self, tell: Callable[[str, dict[str, Any]], None]) -> None:
        """`tell` records a `degraded` event."""
        self._tell = tell
        self._listeners: list[Listener] = []

    def add(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def hear(self, line: dict[str, Any]) -> None:
        """Give `line` to all of them."""
        for listener in tuple(self._listeners):
            try:
                listener(line)
            except Exception as error:  # whatever a logger of the script raises
                self._listeners.remove(listener)
                name = getattr(listener, "__name__", type(listener).__name__)
                self._tell("degraded", {"what": "listener", "detail": f"{name}: {type(error).__name__}: {error}"})


class Reporter:
    """Writes `workers/worker-<rank>.jsonl` and reports to the arbitrator; either may be absent."""

    def __init__(self, rank: int, folder: RunFolder | None) -> None:
        self._rank = rank
        self._files: WorkerFiles | None = None
        if folder:
            from worker_hooks.observe.worker_files import WorkerFiles

            self._files = WorkerFiles(folder, rank)
        self._client: ArbitratorClient | None = None
        self._others = frozenset[int]()  # ranks of the other workers that train as this one connects to the arbitrator
        self._telemetry: Telemetry | None = None
        self._listeners = Listeners(self.tell)
        self._queue: queue.SimpleQueue[tuple[str, float, dict[str, Any] | WindowRecord] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="dynamix-reporter", daemon=True)
        self._thread.start()

    def measure(self, telemetry: Telemetry) -> None:
        """From now on window records also have the measurements of the kernel and the machine."""
        self._telemetry = telemetry
        self.begin_window()

    def listen(self, listener: Listener) -> None:
        """Give `listener` every line from now on, in the reporter's thread. Its first error is told and ends it."""
        self._listeners.add(listener)

    def begin_window(self) -> None:
        """A window begins here: what the kernel has counted so far is in none. Never blocks."""
        self._queue.put(("begin_window", time.time(), {}))

    def connect(self, access: ArbitratorAccess, registration: Registration, bounds: Bounds) -> None:
        """Connect to the arbitrator. Returns at once; an absent arbitrator is an event, not an error."""
        from dynamix_ps.rpc.client import ArbitratorClient  # gRPC, which a run without an arbitrator does not need

        trains = {rank for rank, size in enumerate(registration.plan.batch_sizes) if size}  # some places may be empty
        self._others = frozenset(trains - {registration.rank})
        self._client = ArbitratorClient(access, registration, bounds, on_event=self.tell)
        self._client.start()

    def event(self, kind: str, **fields: Any) -> None:
        """Record an event. Never blocks, never raises."""
        self._queue.put((kind, time.time(), fields))

    def window(self, record: WindowRecord) -> None:
        """Hand over a window record. Never blocks, never raises."""
        self._queue.put(("window", time.time(), record))

    def newest_plan(self) -> Plan | None:
        return self._client.newest_plan() if self._client else None

    def progress(self, iteration: int) -> None:
        """Report in how many iterations this worker has sent its gradients."""
        if self._client:
            self._client.progress(iteration)

    def completed(self, iterations: int) -> None:
        """This worker has completed so many iterations: the launcher knows where it is, however it ends."""
        if self._files:
            self._files.completed(iterations)

    def missing(self, iteration: int) -> Missing:
        """Who keeps the sum of `iteration` from being complete, as far as known.

        It is a worker that has not sent its gradients. Where all have sent them, it is a server, if there are any.
        """
        peers: tuple[PeerStatus, ...] = self._client.peers() if self._client else ()
        late = [peer for peer in peers if peer.iteration <= iteration and peer.rank != self._rank]
        # What the arbitrator heard last may be old. All workers took part in the sum before, so it is this iteration.
        named = [f"worker {peer.rank} (at iteration {iteration}, silent for {peer.silent_s:.0f} s)" for peer in late]
        silent = self._files.silent_servers() if self._files and not late else []
        named += [f"{server.name} (does not answer, silent for {server.silent_s:.0f} s)" for server in silent]
        unheard = ", ".join(f"worker {rank}" for rank in sorted(self._others.difference(peer.rank for peer in peers)))
        if named:
            sentence = f"missing: {', '.join(named)}"
        elif peers and unheard:
            sentence = f"the missing workers are not known: the arbitrator has not heard of {unheard}"
        elif peers:
            sentence = "no worker is missing: all have sent their gradients, so a server or the network does not answer"
        else:
            sentence = "the missing workers are not known: the arbitrator does not answer or is off"
        return Missing(tuple(peer.rank for peer in late), tuple(server.name for server in silent), sentence)

    def close(self, room_s: float = 0.0) -> None:
        """Write all that is queued, leave the arbitrator, stop. Gives up after a few seconds.

        `room_s`: how much longer it waits for room on a full disk.
        """
        self._queue.put(None)
        self._thread.join(CLOSE_S)
        if self._files:
            self._files.close(room_s)
        if self._client:
            self._client.close(CLOSE_S)

    def tell(self, kind: str, fields: dict[str, Any]) -> None:
        """Record a `degraded` or `recovered` event; log the former as a warning."""
        if kind == "degraded":
            logger.warning("%sworker %d: %s: %s", DEGRADED, self._rank, fields["what"], fields["detail"])
        self.event(kind, **fields)

    def _run(self) -> None:
        for item in iter(self._queue.get, None):
            self._handle(*item)
        if self._telemetry:
            self._telemetry.close()
        while not self._queue.empty():  # events that came while the last window was completed
            last = self._queue.get()
            if last is not None:
                self._handle(*last)

    def _handle(self, kind: str, time_s: float, content: dict[str, Any] | WindowRecord) -> None:
        if kind == "begin_window":
            if self._telemetry:
                self._telemetry.begin_window()
            return
        if isinstance(content, WindowRecord):
            content = fields_of(self._complete(content))
        line = {"kind": kind, "time_s": time_s, "rank": self._rank, **content}
        if self._files:
            self._files.write(line)
        self._listeners.hear(line)

    def _complete(self, record: WindowRecord) -> WindowRecord:
        """Add the measurements of kernel and machine, and send the record to the arbitrator."""
        report: RoleReport | None = None
        if self._telemetry:
            record, report = self._telemetry.complete(record)
        if self._client:
            self._client.report(record, report)
        if report and self._files:
            self._files.write_report(report)
        return record
