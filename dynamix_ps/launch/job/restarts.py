"""When a lost role is started again. Pure."""

from __future__ import annotations

import math
from collections import Counter, deque

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0
_LONGEST_AFTER = 10  # starts: every later wait is the longest, and a float holds the doubled one
MOST_KEPT_OUT = 5  # starts in a row that do not count


def wait_before_start_s(made: int) -> float:
    """The wait before the next start, after `made` failed starts."""
    return min(FIRST_WAIT_S * 2.0 ** min(made, _LONGEST_AFTER), LONGEST_WAIT_S)


class Restarts:
    """The restarts of the workers and servers of one job.

    Args:
        most: restarts of each worker and server.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._made: Counter[str] = Counter()  # by role, all restarts
        self._counted: Counter[str] = Counter()  # of `most`
        self._kept_out: Counter[str] = Counter()  # in a row
        self._due_s: dict[str, float] = {}

    def ended(self, role: str, now_s: float) -> None:
        """Note that a worker or server has failed. The wait before its next start doubles each time."""
        self._kept_out[role] = 0
        if self._counted[role] < self._most:
            self._counted[role] += 1
            self._wait(role, now_s)

    def kept_out(self, role: str, now_s: float) -> bool:
        """Note that a joiner has ended because its peers were gone before it entered.

        Returns True where the next start does not count. After `MOST_KEPT_OUT` such starts in a row the joiner `ended`.
        """
        if self._kept_out[role] == MOST_KEPT_OUT:
            self.ended(role, now_s)
            return False
        self._kept_out[role] += 1
        self._wait(role, now_s)
        return True

    def at_once(self, role: str) -> None:
        """Start an ended role again now, however often it was started before."""
        self._due_s[role] = -math.inf

    def due(self, now_s: float) -> dict[str, int]:
        """Roles to start now, each with how often it was started before."""
        roles = [role for role, due_s in self._due_s.items() if due_s <= now_s]
        for role in roles:
            del self._due_s[role]
            self._made[role] += 1
        return {role: self._made[role] for role in roles}

    def _wait(self, role: str, now_s: float) -> None:
        self._due_s[role] = now_s + wait_before_start_s(self._made[role])


class RestartBudget:
    """The restarts of a role that every job needs: at most `restarts` within `window_s`. The caller passes the time.

    Every job needs the scheduler and the arbitrator. The first restart within the window comes after `first_delay_s`,
    every further one after twice as long.

    Attributes:
        due_s: when the next start is due; None: none is, or there are no more. The caller resets it with the start.
    """

    due_s: float | None = None

    def __init__(self, restarts: int = 5, window_s: float = 60.0, first_delay_s: float = 0.5) -> None:
        self._restarts, self._window_s, self._first_delay_s = restarts, window_s, first_delay_s
        self._recent: deque[float] = deque()

    def next_delay_s(self, now_s: float) -> float | None:
        """Seconds to wait before the next start; none: do not start the role again. Call this once per failure."""
        while self._recent and now_s - self._recent[0] >= self._window_s:
            self._recent.popleft()
        self.due_s = None
        if len(self._recent) >= self._restarts:
            return None
        delay_s = self._first_delay_s * 2.0 ** len(self._recent)
        self._recent.append(now_s)
        self.due_s = now_s + delay_s
        return delay_s
