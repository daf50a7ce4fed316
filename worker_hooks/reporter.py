"""Carries what the hook has to tell out of the training thread: to the run folder and to the arbitrator.

The training thread only puts values into a queue and reads the newest plan from an attribute. If the disk
or the arbitrator fails, training does not notice; the reporter says so once.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import queue
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from dynamix_ps.config import Timeouts
from dynamix_ps.messages import PeerStatus, Plan, Registration, WindowRecord
from dynamix_ps.rpc.client import ArbitratorClient

logger = logging.getLogger("dynamix")
CLOSE_S = 3.0


class Reporter:
    """Writes `workers/worker-<rank>.jsonl` and talks to the arbitrator; either may be absent."""

    def __init__(self, rank: int, file: Path | None) -> None:
        self._rank = rank
        self._file = file
        self._client: ArbitratorClient | None = None
        self._queue: queue.SimpleQueue[tuple[str, float, dict[str, Any] | WindowRecord] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="dynamix-reporter", daemon=True)
        self._thread.start()

    def connect(self, address: str, run_id: str, token: str, registration: Registration, timeouts: Timeouts) -> None:
        """Start talking to the arbitrator. Returns at once; an absent arbitrator is an event, not an error."""
        self._client = ArbitratorClient(address, run_id, token, registration, timeouts, on_event=self._on_client_event)
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
        """Tell how many iterations this worker has sent its gradients for."""
        if self._client:
            self._client.progress(iteration)

    def missing(self, iteration: int) -> tuple[list[int], str]:
        """(ranks not known to have sent `iteration` iterations, a sentence naming them)."""
        peers: tuple[PeerStatus, ...] = self._client.peers() if self._client else ()
        late = [peer for peer in peers if peer.iteration < iteration and peer.rank != self._rank]
        if not late:
            return [], "who is missing is not known: the arbitrator does not answer or is off"
        named = ", ".join(f"worker {p.rank} (at iteration {p.iteration}, silent for {p.silent_s:.0f} s)" for p in late)
        return [peer.rank for peer in late], f"missing: {named}"

    def close(self) -> None:
        """Write what is queued, leave the arbitrator, stop. Gives up after a few seconds."""
        self._queue.put(None)
        self._thread.join(CLOSE_S)
        if self._client:
            self._client.close(CLOSE_S)

    def _on_client_event(self, kind: str, fields: dict[str, Any]) -> None:
        if kind == "degraded":
            logger.warning("worker %d: %s: %s", self._rank, fields["what"], fields["detail"])
        self.event(kind, **fields)

    def _run(self) -> None:
        process = psutil.Process()
        while (item := self._queue.get()) is not None:
            kind, time_s, content = item
            if isinstance(content, WindowRecord):
                content = dataclasses.replace(content, memory_bytes=float(process.memory_info().rss))
                if self._client:
                    self._client.report(content)
                content = dataclasses.asdict(content)
            self._write({"kind": kind, "time_s": time_s, "rank": self._rank, **content})

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is None:
            return
        known = {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in line.items()}
        try:
            with self._file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(known) + "\n")
        except OSError as error:
            logger.warning(
                "worker %d: cannot write %s (%s); its records are lost from here on, training continues",
                self._rank,
                self._file,
                error,
            )
            self._file = None
