"""When a lost worker or server is started again. Pure."""

from __future__ import annotations

import math

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0


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
        self._made: dict[str, int] = {}  # by role
        self._due_s: dict[str, float] = {}

    def ended(self, role: str, now_s: float) -> None:
        """A worker or server has ended, otherwise than in order. The wait for its next start doubles with each."""
        made = self._made.get(role, 0)
        if made < self._most:
            self._due_s[role] = now_s + wait_before_start_s(made)

    def at_once(self, role: str) -> None:
        """A role that has ended shall be started again now, however often it was before."""
        self._due_s[role] = -math.inf

    def due(self, now_s: float) -> dict[str, int]:
        """Roles to start now, each with how often it was started before."""
        roles = [role for role, due_s in self._due_s.items() if due_s <= now_s]
        for role in roles:
            del self._due_s[role]
            self._made[role] = self._made.get(role, 0) + 1
        return {role: self._made[role] for role in roles}
