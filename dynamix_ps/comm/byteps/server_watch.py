"""Whether the servers that a worker waits for are alive. The worker asks; the transport of busy servers answers too."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Hashable

_ASKS_PER_QUIET = 10  # a question waits for so much of the time after which a server is silent


class ServerWatch:
    """Questions of one worker to its servers. Any thread.

    Args:
        echo: sends a question to a server. Returns whether its answer comes within so many seconds.
        clock: monotonic seconds.
    """

    def __init__(self, echo: Callable[[int, float], bool], clock: Callable[[], float] = time.monotonic) -> None:
        self._echo, self._clock = echo, clock
        self._mu = threading.Lock()  # one question at a time
        self._progress: Hashable = None
        self._moved_s = self._looked_s = -math.inf
        self._asked_s: dict[int, float] = {}  # since when a server owes an answer

    def answers(self, server: int, limit_s: float) -> bool:
        """Whether this server answers a question within `limit_s`."""
        with self._mu:
            return self._echo(server, limit_s)

    def silent(self, servers: Collection[int], progress: Hashable, quiet_s: float) -> frozenset[int]:
        """The `servers` that give no sign of life for `quiet_s`. Call this several times in `quiet_s`.

        Args:
            servers: servers that have not answered a push of this worker.
            progress: changes with each of their answers. While it changes, servers are only slow, and are not asked.
        """
        now_s = self._clock()
        if progress != self._progress or now_s - self._looked_s > quiet_s / 2:  # or this process was stopped itself
            self._progress, self._moved_s = progress, now_s
            self._asked_s.clear()
        if servers and now_s - self._moved_s >= quiet_s / 2:
            for server in sorted(servers):
                if self.answers(server, quiet_s / _ASKS_PER_QUIET):
                    self._asked_s.pop(server, None)
                else:
                    self._asked_s.setdefault(server, now_s)
        self._looked_s = self._clock()
        since_s = {server: self._asked_s.get(server, math.inf) for server in servers}
        return frozenset(server for server, asked_s in since_s.items() if now_s - asked_s >= quiet_s / 2)
