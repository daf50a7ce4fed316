"""The hosts that an elastic job goes on without, and when the launcher tries to reach each of them again. Pure."""

from __future__ import annotations

from collections import Counter

from dynamix_ps.launch.job.restarts import wait_before_start_s


class AwayHosts:
    """The lost hosts of one job. The wait before the next attempt at a host doubles with each loss and failed attempt.

    All roles of a host share one wait, and start together when the host is back.

    Args:
        patience_s: how long an attempt may take until the host is ready.

    Attributes:
        patience_s: as given.
        leaving: hosts that are told to end, whose workers leave.
    """

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self.leaving: set[str] = set()
        self._away: set[str] = set()
        self._failed: Counter[str] = Counter()  # how often it was lost or not back
        self._reach_s: dict[str, float] = {}  # not before this time, monotonic
        self._due: dict[str, dict[str, int]] = {}  # by host: roles to start there, each with how often it was before
        self._deadline_s: dict[str, float] = {}  # of hosts that are being reached

    def __contains__(self, host: str) -> bool:
        return host in self._away

    @property
    def awaited(self) -> list[str]:
        """Hosts that the launcher is trying to reach."""
        return list(self._deadline_s)

    def waits_for(self, role: str) -> bool:
        """Whether a role starts as soon as its host is back."""
        return any(role in roles for roles in self._due.values())

    def add(self, host: str, now_s: float) -> None:
        """Note that a host is lost and the job goes on."""
        self._away.add(host)
        self._fails(host, now_s)

    def expect(self, host: str, role: str) -> None:
        """Note that a host without roles is to come for this one. If the role is due elsewhere, it is due there now."""
        due = [roles.pop(role) for roles in self._due.values() if role in roles]
        self._away.add(host)
        if due:
            self.wait_for(host, role, *due)

    def wait_for(self, host: str, role: str, starts: int) -> None:
        """Start a role on this host once the host is back. `starts`: how often the role was started before."""
        self._away.add(host)
        self._due.setdefault(host, {})[role] = starts

    def at_once(self, host: str) -> None:
        """Try this host without a wait, because a user asks for a role there."""
        self._reach_s.pop(host, None)

    def to_reach(self, now_s: float) -> list[str]:
        """Hosts to try now, because roles are due there. From then on an attempt at each of them is under way."""
        hosts = [host for host in self._due if host not in self._deadline_s and now_s >= self._reach_s.get(host, now_s)]
        self._deadline_s |= dict.fromkeys(hosts, now_s + self.patience_s)
        return hosts

    def is_late(self, host: str, now_s: float) -> bool:
        """Whether the attempt at a host has taken longer than `patience_s`."""
        return now_s > self._deadline_s[host]

    def back(self, host: str) -> dict[str, int]:
        """Note that a host is ready. Returns the roles to start there, and how often each was started before."""
        self._away.discard(host)
        return self._ends_waiting(host)

    def give_up(self, host: str, now_s: float) -> list[str]:
        """Note that an attempt has failed. Returns the roles that were to start there."""
        self._fails(host, now_s)
        return list(self._ends_waiting(host))

    def _fails(self, host: str, now_s: float) -> None:
        self._reach_s[host] = now_s + wait_before_start_s(self._failed[host])
        self._failed[host] += 1

    def _ends_waiting(self, host: str) -> dict[str, int]:
        del self._deadline_s[host]
        return self._due.pop(host)
