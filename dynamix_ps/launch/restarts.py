"""When a lost worker or server is started again. Pure."""

from __future__ import annotations

import math
from collections import Counter

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0
MOST_KEPT_OUT = 5  # starts in a row that do not count


def wait_before_start_s(made: int) -> float:
    """Before the next start, after so many that were in vain."""
    return min(FIRST_WAIT_S * 2.0**made, LONGEST_WAIT_S)


class Restarts:
    """Of one job.

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
        """A worker or server has ended, otherwise than in order. The wait for its next start doubles with each."""
        self._kept_out[role] = 0
        if self._counted[role] < self._most:
            self._counted[role] += 1
            self._wait(role, now_s)

    def kept_out(self, role: str, now_s: float) -> bool:
        """A worker that was to enter has ended, because others were gone before it had.

        Returns whether it is started again without counting: `MOST_KEPT_OUT` times in a row. Then it has `ended`.
        """
        if self._kept_out[role] == MOST_KEPT_OUT:
            self.ended(role, now_s)
            return False
        self._kept_out[role] += 1
        self._wait(role, now_s)
        return True

    def at_once(self, role: str) -> None:
        """A role that has ended shall be started again now, however often it was before."""
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
