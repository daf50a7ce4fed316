"""Sends the newest report of a role to the arbitrator. The caller never waits."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator

import grpc

from dynamix_ps.messages import RoleReport
from dynamix_ps.rpc.access import ArbitratorAccess
from dynamix_ps.rpc.backoff import backoff_s
from dynamix_ps.rpc.client import FIRST_RETRY_S, LONGEST_RETRY_S
from dynamix_ps.rpc.link import ObserverLink

_CLUSTER_SIZE = 1  # no answer grows with the number of workers


class RoleObserver:
    """Sends reports from a thread of its own.

    It keeps only the newest report: the next one replaces a report that could not be sent. While the arbitrator does
    not answer, it tries again without a message; the clients of the workers report the outage. In a forked child it
    does nothing.
    """

    def __init__(self, access: ArbitratorAccess) -> None:
        """Returns at once."""
        self._rpc_s = access.timeouts.rpc_s
        self._pid = os.getpid()
        self._link = ObserverLink(access, _CLUSTER_SIZE)
        self._lock = threading.Lock()
        self._newest: RoleReport | None = None
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dynamix-observer", daemon=True)
        self._thread.start()

    def send(self, report: RoleReport) -> None:
        """Hand over a report. Never blocks, never raises."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._newest = report
        self._wake.set()

    def close(self) -> None:
        """Try once more to send what is left, and stop. Gives up after `rpc_s`."""
        if os.getpid() != self._pid:
            return
        self._closing.set()
        self._wake.set()
        self._thread.join(self._rpc_s)
        self._link.close()  # ends a call under way
        self._thread.join(self._rpc_s)

    def _run(self) -> None:
        delays = self._delays()
        while True:
            self._wake.wait()
            self._wake.clear()
            last = self._closing.is_set()
            if self._send_newest():
                delays = self._delays()
            elif not last:
                self._closing.wait(next(delays))
                self._wake.set()
            if last:
                return

    def _send_newest(self) -> bool:
        """Whether nothing is left to send. A report that the arbitrator calls malformed is dropped; others are kept."""
        report = self._newest
        if report is None:
            return True
        try:
            self._link.observe(report)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.INVALID_ARGUMENT:
                return False
        with self._lock:
            if self._newest is report:
                self._newest = None
        return True

    def _delays(self) -> Iterator[float]:
        return backoff_s(FIRST_RETRY_S, LONGEST_RETRY_S, random.Random())
