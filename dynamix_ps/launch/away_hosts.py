"""Hosts that an elastic job goes on without, and those of them that it waits for to start roles there. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class _Awaited:
    """A host that is being reached again. `roles`: how often each was started before, by name."""

    deadline_s: float  # monotonic
    roles: dict[str, int] = field(default_factory=dict)


class AwayHosts:
    """Of one job.

    Args:
        patience_s: until a host must be ready.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._away: set[str] = set()
        self._awaited: dict[str, _Awaited] = {}

    def __contains__(self, host: str) -> bool:
        return host in self._away

    @property
    def awaited(self) -> list[str]:
        """Hosts that are being reached again."""
        return list(self._awaited)

    def waits_for(self, role: str) -> bool:
        """Whether a role starts as soon as its host is back."""
        return any(role in one.roles for one in self._awaited.values())

    def add(self, host: str) -> None:
        """The job goes on without this host."""
        self._away.add(host)

    def wait_for(self, host: str, role: str, starts: int, now_s: float) -> bool:
        """A role shall start there. Returns whether the host must be reached for it: it is not being reached yet."""
        self._away.add(host)
        new = host not in self._awaited
        one = self._awaited.setdefault(host, _Awaited(now_s + self._patience_s))
        one.roles[role] = starts
        return new

    def is_late(self, host: str, now_s: float) -> bool:
        """Whether a host that is being reached should be ready by now."""
        return now_s > self._awaited[host].deadline_s

    def back(self, host: str) -> dict[str, int]:
        """A host is ready. Returns the roles to start there, and how often each was started before."""
        self._away.discard(host)
        return self._awaited.pop(host).roles

    def give_up(self, host: str) -> list[str]:
        """A host cannot be reached. Returns the roles that were to start there."""
        return list(self._awaited.pop(host).roles)
