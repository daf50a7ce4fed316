"""A worker's connection to the rest of the run: data plane, run folder, arbitrator. The same for all frameworks."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dynamix_ps.comm import Comm, open_comm
from dynamix_ps.messages import Plan, Registration
from dynamix_ps.metrics.network.connection import Connection
from dynamix_ps.metrics.network.monitor import NetworkMonitor
from dynamix_ps.metrics.network.own_sockets import opened_between, own_sockets
from dynamix_ps.metrics.system import SystemSampler
from dynamix_ps.run_record.run_folder import RunFolder
from worker_hooks.failure import leave
from worker_hooks.launched import fixed_sizes_note, waiting_note
from worker_hooks.observe.reporter import Reporter
from worker_hooks.observe.telemetry import Telemetry
from worker_hooks.settings import Settings

logger = logging.getLogger("dynamix")
_comms: dict[str, Comm] = {}
_data_planes: dict[str, Callable[[Connection], bool]] = {}  # which connections belong to them
_users: dict[str, int] = {}  # open sessions per data plane; the last one to close shuts it down


class Session:
    """Opened when a model is attached, closed when its training is over."""

    def __init__(self, settings: Settings, framework: str) -> None:
        """Join the other workers; blocks until all are there. `framework`: whose arrays are summed."""
        if settings.comm not in _comms:
            if note := fixed_sizes_note(os.environ):
                print(f"note: {note}", file=sys.stderr, flush=True)
            comm, before = open_comm(settings.comm, framework), own_sockets()
            with _told_while_waiting(settings.timeouts.stall_warn_s):
                comm.init()
            _comms[settings.comm] = comm
            _data_planes[settings.comm] = opened_between(before, own_sockets())
        _users[settings.comm] = _users.get(settings.comm, 0) + 1
        self.comm = _comms[settings.comm]
        self.settings = settings
        self.folder = RunFolder(settings.run_dir) if settings.run_dir else None
        self.reporter = Reporter(self.comm.rank, self.folder)

    def start(self, batch_size: int, iteration: int, framework: str) -> None:
        """Announce that this worker takes part, from `iteration` on with batches of this size."""
        self.reporter.event(
            "started",
            comm=self.comm.name,
            comm_version=self.comm.version(),
            framework=framework,
            pid=os.getpid(),
            batch_size=batch_size,
            iteration=iteration,
        )
        settings = self.settings
        if settings.mode == "off":
            return
        wanted = settings.network if self.comm.size > 1 else "off"
        network = NetworkMonitor(wanted, self.reporter.tell, _data_planes[settings.comm])
        self.reporter.measure(Telemetry(self.comm.rank, network, SystemSampler().sample))

    def connect(self, plan: Plan) -> None:
        """Register at the arbitrator with the plan that training begins with, and start listening for plans."""
        settings = self.settings
        if settings.mode == "off":
            return
        if settings.arbitrator:
            me = Registration(self.comm.rank, uuid.uuid4().hex, socket.gethostname(), os.getpid(), plan)
            run, timeouts, bounds = (settings.run_id, settings.token), settings.timeouts, settings.bounds or ()
            self.reporter.connect(settings.arbitrator, *run, me, timeouts, bounds)
        else:
            self.reporter.event("degraded", what="arbitrator", detail="no address given; batch sizes stay as they are")
            logger.warning("mode %s but no arbitrator address: batch sizes stay as they are", settings.mode)

    def newest_plan(self) -> Plan | None:
        """The newest plan that this worker can vote for."""
        return self.reporter.newest_plan()

    def close(self) -> None:
        """Leave the arbitrator, the run folder and the other workers. Collective."""
        self.reporter.close()
        name = self.settings.comm
        _users[name] -= 1
        if _users[name] == 0:
            leave(self.comm, self.settings.timeouts.stall_fail_s)
            del _comms[name], _data_planes[name], _users[name]

    def abandon(self, error: BaseException, iteration: int) -> None:
        """Record why this worker fails; do not wait for the other workers."""
        self.reporter.event("failed", error=str(error) or type(error).__name__, iteration=iteration)
        self.reporter.close()


@contextmanager
def _told_while_waiting(after_s: float) -> Iterator[None]:
    """Say on standard error after `after_s` that other roles are missing, and again each time the wait has doubled."""
    over = threading.Event()

    def tell() -> None:
        waited_s = after_s
        while not over.wait(waited_s if waited_s == after_s else waited_s / 2):
            print(f"note: {waiting_note(os.environ, waited_s)}", file=sys.stderr, flush=True)
            waited_s *= 2

    threading.Thread(target=tell, name="dynamix-join", daemon=True).start()
    try:
        yield
    finally:
        over.set()
