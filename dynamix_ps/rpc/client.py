"""The worker's client of the arbitrator. Training reads and writes attributes; threads of the client make the calls.

There are two daemon threads per worker: one makes the calls (register, report, heartbeat, leave), the other follows
the stream of plans. While the arbitrator cannot be reached, training goes on with its plan; the client reports this
once per outage. In a forked child, such as a data-loader worker, the client does nothing: a fork copies no threads.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import grpc

from dynamix_ps.messages import PeerStatus, Plan, Registration, RoleReport, WindowRecord
from dynamix_ps.rpc.access import ArbitratorAccess
from dynamix_ps.rpc.backoff import backoff_s
from dynamix_ps.rpc.link import Link, is_final, is_impostor, is_transient, reason
from dynamix_ps.rpc.plan_rules import Bounds, wrong_plan
from dynamix_ps.rpc.refusals import RefusalError

MAX_QUEUED_RECORDS = 64
FIRST_RETRY_S, LONGEST_RETRY_S = 0.1, 2.0
_CANNOT_SERVE = "cannot serve this worker"

OnEvent = Callable[[str, dict[str, Any]], None]


class _Queued(NamedTuple):
    record: WindowRecord
    observed: RoleReport | None


class ArbitratorClient:
    """A worker's connection to the arbitrator.

    Args:
        access: where the arbitrator is, and what it wants to see.
        registration: who this worker is, and the plan it starts with.
        bounds: (smallest, largest) batch size of every worker. A plan beyond them is refused.
        on_event: called from a thread of the client with ("degraded" | "recovered", {"what", "detail"}).
    """

    def __init__(self, access: ArbitratorAccess, registration: Registration, bounds: Bounds, on_event: OnEvent) -> None:
        self._access = access
        self._registration = registration
        self._bounds = bounds
        self._pid = os.getpid()
        self._rng = random.Random(registration.incarnation)
        self._outage = _Outage(access.address, access.timeouts.lease_s, on_event)
        self._on_event = on_event
        self._records: deque[_Queued] = deque(maxlen=MAX_QUEUED_RECORDS)
        self._newest: Plan | None = None
        self._iteration = 0
        self._peers: tuple[PeerStatus, ...] = ()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._stream_broke = False
        self._report_refused = False
        self._plan_refused = False
        self._thread = threading.Thread(target=self._run, name="dynamix-rpc", daemon=True)
        self.dropped_records = 0  # the oldest ones, dropped because the queue was full

    # called by training; none of these blocks

    def start(self) -> None:
        """Start to connect, and return at once. Events tell whether it succeeds."""
        self._thread.start()

    def report(self, record: WindowRecord, observed: RoleReport | None = None) -> None:
        """Queue a record, with the report of this worker's connections and machine at the same moment.

        If the queue is full, the oldest record is dropped and counted.
        """
        if os.getpid() != self._pid:
            return
        if len(self._records) == MAX_QUEUED_RECORDS:
            self.dropped_records += 1
        self._records.append(_Queued(record, observed))
        self._wake.set()

    def newest_plan(self) -> Plan | None:
        """The newest plan received that this worker can vote for, or None. A wrong plan never becomes unanimous."""
        return self._newest

    def progress(self, iteration: int) -> None:
        """Tell how many iterations this worker has sent its gradients for."""
        self._iteration = iteration

    def peers(self) -> tuple[PeerStatus, ...]:
        """The status of all workers at the last heartbeat."""
        return self._peers

    def close(self, timeout_s: float) -> None:
        """Send what is queued, leave, and stop the threads. Waits at most `timeout_s` for them."""
        if os.getpid() != self._pid:
            return
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    # the thread that makes the calls

    def _run(self) -> None:
        """Connect, serve the connection until it fails, wait, connect again, until closed or refused for good."""
        delays = backoff_s(FIRST_RETRY_S, LONGEST_RETRY_S, self._rng)
        while not self._closing.is_set():
            link = Link(self._access, self._registration)
            try:
                self._take(link.register(self._newest))
                self._outage.over()
                delays = backoff_s(FIRST_RETRY_S, LONGEST_RETRY_S, self._rng)
                follower = threading.Thread(target=self._follow, args=(link,), name="dynamix-plans", daemon=True)
                follower.start()
                self._serve(link)
            except grpc.RpcError as error:
                if is_impostor(error):
                    self._outage.begin("is not used", str(error), at_once=True)
                elif is_final(error):
                    self._outage.begin(_CANNOT_SERVE, reason(error), at_once=True)
                    return
                else:
                    self._outage.begin("does not answer", reason(error), at_once=False)
            except RefusalError as error:
                self._outage.begin(_CANNOT_SERVE, f"its answer makes no sense: {error}", at_once=True)
                return
            finally:
                link.close()
            self._closing.wait(next(delays))

    def _serve(self, link: Link) -> None:
        """Send records as they come and heartbeats in between. Return when closing; raise when a call fails."""
        interval_s = self._access.timeouts.lease_s / 3
        due_s = time.monotonic()
        while not self._closing.is_set():
            self._wake.clear()
            self._send_queued(link)
            if time.monotonic() >= due_s or self._stream_broke:
                self._stream_broke = False
                self._peers = link.heartbeat(self._iteration)
                due_s = time.monotonic() + interval_s
            self._wake.wait(max(0.0, due_s - time.monotonic()))
        self._send_queued(link)  # the last window is often complete just before closing
        link.leave()

    def _send_queued(self, link: Link) -> None:
        while self._records:
            self._send(link, self._records[0])

    def _send(self, link: Link, queued: _Queued) -> None:
        """Report one record. It stays queued only if sending it again can succeed."""
        try:
            link.report(queued.record, queued.observed)
        except grpc.RpcError as error:
            if is_transient(error):
                raise
            self._drop(queued)
            if error.code() != grpc.StatusCode.INVALID_ARGUMENT:
                raise
            if not self._report_refused:
                detail = f"window {queued.record.window}: {reason(error)}"
                self._on_event("degraded", {"what": "report", "detail": detail})
            self._report_refused = True
        else:
            self._drop(queued)

    def _drop(self, queued: _Queued) -> None:
        if self._records and self._records[0] is queued:  # the full queue may have dropped it meanwhile
            self._records.popleft()

    # the thread that follows the plans

    def _follow(self, link: Link) -> None:
        """Take plans as they come. If the stream breaks, the calls of the other thread show why."""
        delays = backoff_s(FIRST_RETRY_S, LONGEST_RETRY_S, self._rng)
        while not link.closed.is_set():
            try:
                for plan in link.plans(self._newest):
                    self._take(plan)
            except RefusalError as error:
                self._on_event("degraded", {"what": "plan", "detail": f"a plan makes no sense: {error}"})
                return
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.DEADLINE_EXCEEDED and not link.closed.is_set():
                    self._stream_broke = True
                    self._wake.set()
                    link.closed.wait(next(delays))

    def _take(self, plan: Plan) -> None:
        """Hold a newer plan. A wrong one is refused, with one event until a right one comes."""
        held = self._newest or self._registration.plan
        if plan.version <= held.version:
            return
        problem = wrong_plan(plan, held, self._bounds)
        if not problem:
            self._newest = plan
        elif not self._plan_refused:
            detail = f"plan {plan.version} refused: {problem}; training goes on with plan {held.version}"
            self._on_event("degraded", {"what": "plan", "detail": detail})
        self._plan_refused = bool(problem)


class _Outage:
    """Reports once when the arbitrator is lost, and once when it is back.

    Until the first contact it may take one lease to start; that is no outage.
    """

    def __init__(self, address: str, grace_s: float, on_event: OnEvent) -> None:
        self._address = address
        self._grace_s = grace_s
        self._on_event = on_event
        self._began_s = time.monotonic()
        self._met = False
        self._told: set[str] = set()

    def begin(self, what: str, why: str, at_once: bool) -> None:
        """Say `what` is wrong with the arbitrator, and why, unless this outage was reported with these words."""
        patient = not self._met and not at_once and time.monotonic() - self._began_s < self._grace_s
        if what in self._told or patient:
            return
        self._told.add(what)
        detail = f"{self._address} {what}: {why}; training goes on with the present batch sizes"
        self._on_event("degraded", {"what": "arbitrator", "detail": detail})

    def over(self) -> None:
        self._met = True
        if self._told:
            self._told.clear()
            self._on_event("recovered", {"what": "arbitrator"})
