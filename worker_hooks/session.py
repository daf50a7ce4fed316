"""A process's connection to the rest of the run: data plane, run folder, arbitrator. The same for all frameworks.

A process joins the data plane once, and leaves it when it ends. Its trainings come and go: one after the other (folds,
phases) or several at once. They share one account of iterations, windows and plans, so that records go on counting.

Everything that a training knows of its cluster comes from here: which workers it computes for, their clock, where
records go and plans come from. A rehearsal (dynamix_ps/rehearsal/) has a session of its own, and nothing else differs.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from dynamix_ps.comm import Comm, open_comm
from dynamix_ps.errors import TimedOut
from dynamix_ps.messages import Plan, Registration
from worker_hooks.observe.account import RunAccount
from worker_hooks.observe.reporter import Reporter, Reporting
from worker_hooks.observe.stopwatch import NewestSum, Stopwatch, Watch
from worker_hooks.process.adopted import is_adopted
from worker_hooks.process.failure import end_beside_training, leave
from worker_hooks.process.launched import fixed_sizes_note, waiting_note
from worker_hooks.process.place import take_place
from worker_hooks.settings import Settings
from worker_hooks.workers import Workers

if TYPE_CHECKING:
    from dynamix_ps.metrics.network.connection import Connection
    from dynamix_ps.run_record.run_folder import RunFolder
    from worker_hooks.membership.member_process import MemberProcess

logger = logging.getLogger("dynamix")
ROOM_S = 10.0  # the longest wait of a worker that ends for room on a full disk (chosen by us)
_REHEARSED = "dynamix_ps.rehearsal.session:RehearsedSession"  # loaded where the environment asks for it


class JoinedDataPlane(NamedTuple):
    """A data plane that this process has joined."""

    comm: Comm
    has: Callable[[Connection], bool]  # whether a connection belongs to it


_planes: dict[str, JoinedDataPlane] = {}
_accounts: dict[Settings, RunAccount] = {}
_open: dict[Settings, Session] = {}


class Session:
    """The connection of all trainings with the same settings: `join` and `close` for each of them."""

    def __init__(self, settings: Settings, framework: str) -> None:
        """Join the other workers; blocks until all are there. `framework`: whose arrays are summed."""
        self._plane = join(settings, framework)
        self.comm = self._plane.comm
        self.settings = settings
        self.member: MemberProcess | None = None
        if self.comm.elastic is not None:
            from worker_hooks.membership.member_process import MemberProcess

            self.member = MemberProcess(settings, self.comm, self.comm.elastic)
        self.folder: RunFolder | None = None
        if settings.run_dir:
            from dynamix_ps.run_record.run_folder import RunFolder

            self.folder = RunFolder(settings.run_dir)
        self.workers = replace(Workers.one_per_process(self.comm), told=_told_numbers(settings))
        self.reporter: Reporting = self._open_records()
        for sentence in self.comm.degradations:
            self._data_plane_degraded(sentence)
        self.comm.on_degraded = self._data_plane_degraded
        self.account = _accounts.setdefault(settings, RunAccount(self.now_s))
        self._trainings = 0
        self._connected = False

    @staticmethod
    def join(settings: Settings, framework: str) -> Session:
        """The session of a new training: the one that is open, or a new one."""
        if settings not in _open:
            kind = Session
            if settings.rehearsal:
                from dynamix_ps.parts import load

                kind = load(_REHEARSED)
            _open[settings] = kind(settings, framework)
        return _open[settings]

    def _open_records(self) -> Reporting:
        """Open the records of the workers of this process."""
        self._reporter = Reporter(self.comm.rank, self.folder)
        return self._reporter

    def now_s(self) -> float:
        """The clock of this run: seconds since some moment."""
        return time.perf_counter()

    def make_watch(self, newest: Callable[[], NewestSum]) -> Watch:
        """The watch of a training, of which `newest` tells the newest sum."""
        return Stopwatch()

    def start(self, batch_sizes: Sequence[int], iteration: int, framework: str, follows: bool = False) -> None:
        """A training begins at `iteration`. The first one announces the workers of this process and their sizes.

        `follows`: this worker is in no sum yet, and is announced when it `entered`.
        """
        self._trainings += 1
        self.account.trainings += 1
        if self._trainings == 1 and not follows:
            self.entered(batch_sizes, iteration, framework)

    def entered(self, batch_sizes: Sequence[int], iteration: int, framework: str) -> None:
        """The workers of this process take part from `iteration` on."""
        self._started(
            batch_sizes,
            comm=self.comm.name,
            comm_version=self.comm.version(),
            framework=framework,
            pid=os.getpid(),
            iteration=self.account.iterations or iteration,
        )

    def _started(self, batch_sizes: Sequence[int], **fields: Any) -> None:
        """The first training of this process begins."""
        self.reporter.event("started", batch_size=batch_sizes[0], **fields)
        settings = self.settings
        if settings.config.mode == "off":
            return
        from dynamix_ps.metrics.network.monitor import NetworkMonitor
        from dynamix_ps.metrics.system import SystemSampler
        from worker_hooks.observe.telemetry import Telemetry

        wanted = settings.config.metrics.network if self.comm.size > 1 else "off"
        network = NetworkMonitor(wanted, self.reporter.tell, self._plane.has)
        self._reporter.measure(Telemetry(self.comm.rank, network, SystemSampler().sample))

    def connect(self, plan: Plan, work: str) -> None:
        """Register at the arbitrator with the plan that training begins with, and start listening for plans.

        Where every worker chooses its own size, the arbitrator of an elastic job is asked for members alone.

        `work`: digest of what this worker computes, and on what; empty: it does not tell.

        A training that begins while another one is connected follows the same plans.
        """
        nobody_decides = self.settings.own_sizes is not None and self.member is None
        if self.settings.config.mode == "off" or nobody_decides or self._connected:
            return
        self._connected = True
        self._connect(plan, work)

    def _connect(self, plan: Plan, work: str) -> None:
        access = self.settings.arbitrator
        if access:
            if not self.settings.own_sizes:
                me = Registration(self.comm.rank, uuid.uuid4().hex, socket.gethostname(), os.getpid(), plan, work)
                self._reporter.connect(access, me, self.settings.accepted_bounds)
            if self.member is not None and not self.member.join():
                missed = "not all members of the job have met in time; a worker lost before they have ends the job"
                self.degraded("elastic", missed)
        else:
            self.reporter.event("degraded", what="arbitrator", detail="no address given; batch sizes stay as they are")
            logger.warning("mode %s but no arbitrator address: batch sizes stay as they are", self.settings.config.mode)

    @property
    def may_leave(self) -> bool:
        """Whether this worker can leave the others, which then go on."""
        return self.member is not None and self.member.may_leave

    def newest_plan(self) -> Plan | None:
        """The newest plan that this worker can vote for."""
        return self.reporter.newest_plan()

    def _data_plane_degraded(self, sentence: str) -> None:
        self.reporter.tell("degraded", {"what": "data plane", "detail": sentence})

    def degraded(self, what: str, detail: str) -> None:
        """Tell people that `what` is less than was asked for."""
        self.reporter.tell("degraded", {"what": what, "detail": detail})

    def close(self) -> None:
        """A training is over. The last one also leaves arbitrator and run folder; the data plane stays."""
        self._trainings -= 1
        if self._trainings <= 0:
            if not self.comm.left:
                self.account.finished(self.reporter)
            self.reporter.close(ROOM_S)
            _open.pop(self.settings, None)

    def abandon(self, error: BaseException, iteration: int) -> None:
        """Record why this worker fails; do not wait for the other workers."""
        self.reporter.event("failed", error=str(error) or type(error).__name__, iteration=iteration)
        self.reporter.close()


def _told_numbers(settings: Settings) -> int:
    """How many numbers each worker tells the others in every sum."""
    if not settings.own_sizes:
        return 0
    from worker_hooks.size_choice import told_numbers

    return told_numbers()


def is_open() -> bool:
    """Whether a training of this process is open."""
    return bool(_open)


def join(settings: Settings, framework: str) -> JoinedDataPlane:
    """The data plane that `settings` name; blocks until all workers are there. This process leaves it when it ends.

    Raises UsageError if another process is this worker.
    """
    take_place(os.environ)
    if settings.config.comm not in _planes:
        from dynamix_ps.metrics.network.own_sockets import opened_between, own_sockets

        if note := fixed_sizes_note(os.environ):
            print(f"note: {note}", file=sys.stderr, flush=True)
        comm, before = open_comm(settings.config.comm, framework), own_sockets()
        timeouts = settings.config.timeouts
        with _told_while_waiting(timeouts.stall_warn_s, timeouts.launch_s if is_adopted() else math.inf):
            comm.init()
        _planes[settings.config.comm] = JoinedDataPlane(comm, opened_between(before, own_sockets()))
        atexit.register(leave, comm, settings.config.timeouts.stall_fail_s)
        if comm.size > 1:
            os.register_at_fork(after_in_child=partial(_in_forked_child, comm))
    return _planes[settings.config.comm]


def _in_forked_child(comm: Comm) -> None:
    """A forked process inherits the connections of the worker. It must neither use nor end them."""
    comm.refuse_sums(f"worker {comm.rank} has forked this process, which cannot train or evaluate in its place")


@contextmanager
def _told_while_waiting(after_s: float, limit_s: float) -> Iterator[None]:
    """Say on standard error after `after_s` that other roles are missing, and again each time the wait has doubled.

    The first time after `limit_s`, this process ends: others that had met it are lost.
    """
    over = threading.Event()

    def tell() -> None:
        waited_s = after_s
        while not over.wait(waited_s if waited_s == after_s else waited_s / 2):
            note = waiting_note(os.environ, waited_s)
            if waited_s >= limit_s:
                end_beside_training(TimedOut(f"{note} Gave up after timeouts.launch_s = {limit_s:g}"))
            print(f"note: {note}", file=sys.stderr, flush=True)
            waited_s *= 2

    threading.Thread(target=tell, name="dynamix-join", daemon=True).start()
    try:
        yield
    finally:
        over.set()
