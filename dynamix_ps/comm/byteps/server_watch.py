"""Whether the servers live for which a worker waits: they are asked, and their transport answers, whatever they do."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Hashable

_ASKS_PER_QUIET = 10  # a question waits for so much of the time after which a server is silent


class ServerWatch:
    """Questions of one worker to its servers. Any thread.

    Args:
        echo: sends a server a question. Whether an answer comes within so many seconds, of whichever server.
        clock: monotonic seconds.
    """

    def __init__(self, echo: Callable[[int, float], bool], clock: Callable[[], float] = time.monotonic) -> None:
        self._echo, self._clock = echo, clock
        self._mu = threading.Lock()  # one question at a time
        self._owed = 0  # answers for which nobody waited long enough; they may still come
        self._progress: Hashable = None
        self._moved_s = self._looked_s = -math.inf
        self._asked_s: dict[int, float] = {}  # since when a server owes an answer

    def answers(self, server: int, limit_s: float) -> bool:
        """Whether this server answers a question within `limit_s`.

        An answer does not tell whose it is. So it is asked once more for each answer that may come late.
        """
        with self._mu:
            for _ in range(self._owed + 1):
                if not self._echo(server, limit_s):
                    self._owed += 1
                    return False
        return True

    def silent(self, servers: Collection[int], progress: Hashable, quiet_s: float) -> frozenset[int]:
        """Those of `servers` that give no sign of life for `quiet_s`. To be called several times in that time.

        Args:
            servers: that have something of this worker, and have not answered.
            progress: changes with each of their answers. While it does, a server is only slow, and is not asked.
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
