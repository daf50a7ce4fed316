"""Servers that come while the job trains: only those that have answered a worker may get keys from it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from dynamix_ps.comm.peer_watch import PeerWatch
from dynamix_ps.comm.plane import WorkerPlane
from dynamix_ps.errors import PeerLostError
from dynamix_ps.membership.messages import Process
from dynamix_ps.membership.worker import Worker

_ANSWER_S = 0.5  # of a server to one question
_MEET_S = 60.0  # until a server must answer


class LateServers:
    """As one worker meets them.

    Args:
        worker: knows who is offered, and who has answered.
        mu: of the worker.
        watch: tells the worker which connections have closed.
    """

    def __init__(self, worker: Worker, mu: threading.Lock, plane: WorkerPlane, watch: PeerWatch) -> None:
        self._worker, self._mu, self._plane, self._watch = worker, mu, plane, watch

    def meet(self) -> None:
        """See whether those that are offered answer."""
        with self._mu:
            new = self._worker.not_met()
        for server in new:
            self._answers(server)

    def wait(self, entering: Iterable[Process]) -> None:
        """Until each server among these answers, or is lost. Raises PeerLostError."""
        deadline_s = time.monotonic() + _MEET_S
        for server in entering:
            while not self._worker.known.has_met(server):
                if not self._answers(server) and time.monotonic() > deadline_s:
                    raise PeerLostError(
                        f"{server} has not answered this worker in {_MEET_S:g} s; it must be started again"
                    )

    def _answers(self, server: Process) -> bool:
        """Whether it answers now. A connection to its slot that is found closed was to the one before it."""
        if answers := self._plane.answers(server.slot, _ANSWER_S):
            self._watch.tell()
            with self._mu:
                self._worker.met(server)
        return answers
