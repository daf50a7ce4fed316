"""Hosts that an elastic job goes on without, and when which of them are reached again to start roles there. Pure."""

from __future__ import annotations

from collections import Counter

from dynamix_ps.launch.job.restarts import wait_before_start_s


class AwayHosts:
    """Of one job. The wait before a host is reached again doubles with each time that it was lost or not back.

    It is one wait for all roles of the host: those that are due before start together when the host is back.

    Args:
        patience_s: until a host must be ready, once it is being reached.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._away: set[str] = set()
        self._failed: Counter[str] = Counter()  # how often it was lost or not back
        self._reach_s: dict[str, float] = {}  # not before this time, monotonic
        self._due: dict[str, dict[str, int]] = {}  # by host: roles to start there, each with how often it was before
        self._deadline_s: dict[str, float] = {}  # of hosts that are being reached

    def __contains__(self, host: str) -> bool:
        return host in self._away

    @property
    def awaited(self) -> list[str]:
        """Hosts that are being reached again."""
        return list(self._deadline_s)

    def waits_for(self, role: str) -> bool:
        """Whether a role starts as soon as its host is back."""
        return any(role in roles for roles in self._due.values())

    def add(self, host: str, now_s: float) -> None:
        """A host is lost, and the job goes on without it."""
        self._away.add(host)
        self._fails(host, now_s)

    def wait_for(self, host: str, role: str, starts: int) -> None:
        """A role shall start there, after so many starts before."""
        self._away.add(host)
        self._due.setdefault(host, {})[role] = starts

    def at_once(self, host: str) -> None:
        """A user wants a role there: the host is reached without a wait."""
        self._reach_s.pop(host, None)

    def to_reach(self, now_s: float) -> list[str]:
        """Hosts to reach again now, for all roles that are due there. Each counts as being reached from then on."""
        hosts = [host for host in self._due if host not in self._deadline_s and now_s >= self._reach_s.get(host, now_s)]
        self._deadline_s |= dict.fromkeys(hosts, now_s + self._patience_s)
        return hosts

    def is_late(self, host: str, now_s: float) -> bool:
        """Whether a host that is being reached should be ready by now."""
        return now_s > self._deadline_s[host]

    def back(self, host: str) -> dict[str, int]:
        """A host is ready. Returns the roles to start there, and how often each was started before."""
        self._away.discard(host)
        return self._ends_waiting(host)

    def give_up(self, host: str, now_s: float) -> list[str]:
        """A host cannot be reached. Returns the roles that were to start there."""
        self._fails(host, now_s)
        return list(self._ends_waiting(host))

    def _fails(self, host: str, now_s: float) -> None:
        self._reach_s[host] = now_s + wait_before_start_s(self._failed[host])
        self._failed[host] += 1

    def _ends_waiting(self, host: str) -> dict[str, int]:
        del self._deadline_s[host]
        return self._due.pop(host)
