"""When a suspicion is confirmed. Pure.

A process is lost if the launcher has seen its exit, if two processes have seen its connections close, or if one has and
`confirm_s` have passed. Silence alone loses nobody: its lease must have run out *and* somebody must wait for it. A
coordinator that hears nobody is cut off itself: the silence of others counts for nothing then.
"""

from __future__ import annotations

import math
from collections.abc import Set

from dynamix_ps.membership.messages import Process, Processes

_WITNESSES = 2


class Suspicions:
    """What is reported about processes that may be lost."""

    def __init__(self, confirm_s: float, lease_s: float) -> None:
        self._confirm_s, self._lease_s = confirm_s, lease_s
        self._closed: dict[Process, dict[Process, float]] = {}  # when each witness has said so
        self._waiting: dict[Process, Processes] = {}
        self._heard_s: dict[Process, float] = {}
        self._checked_s: float | None = None
        self._anybody_s = -math.inf  # when a worker or server was heard last
        self._cut_off_s = 0.0  # for how long nobody is heard; less than half a lease counts as 0
        self._again_s = self._back_s = -math.inf  # when somebody was heard after that; by when all others can be

    def heard(self, process: Process, now_s: float) -> None:
        """It is alive: a message or a heartbeat came."""
        if process.role != "launcher":  # which is beside the coordinator
            if self._cut_off_s:  # TCP waits up to as long again between two attempts
                self._again_s, self._back_s = now_s, now_s + self._cut_off_s
            self._anybody_s, self._cut_off_s = now_s, 0.0
        self._heard_s[process] = now_s

    def closed(self, process: Process, witness: Process, now_s: float) -> None:
        """`witness` has seen the exit of `process`, or its connection close."""
        self._closed.setdefault(process, {}).setdefault(witness, now_s)

    def waits(self, witness: Process, processes: Processes) -> None:
        """Whom `witness` waits for now."""
        self._waiting[witness] = processes

    def forget(self, process: Process) -> None:
        """It is gone: nothing about it, or from it, counts any more."""
        for table in (self._closed, self._waiting, self._heard_s):
            table.pop(process, None)
        self._waiting = {witness: processes - {process} for witness, processes in self._waiting.items()}
        for witnesses in self._closed.values():
            witnesses.pop(process, None)

    def confirmed(
        self, now_s: float, awaited: Set[Process], needed: Set[Process] = frozenset()
    ) -> tuple[Process, str] | None:
        """One process that is lost, and how it is known. To be called several times per lease.

        Args:
            now_s: same clock as of the other calls.
            awaited: whose answer the coordinator itself waits for.
            needed: whose silence loses nobody, because nobody can go on without them.
        """
        if self._checked_s is None or now_s - self._checked_s > self._lease_s / 2:
            self._heard_s.clear()  # the coordinator itself was stopped, and has heard nobody
            self._anybody_s = now_s
        self._checked_s = now_s
        silent_s = now_s - self._anybody_s
        self._cut_off_s = silent_s if silent_s > self._lease_s / 2 else 0.0
        found = [(process, reason) for process in self._closed if (reason := self._dead(process, now_s))]
        waited_for = frozenset(awaited).union(*self._waiting.values()) - needed
        found += [
            (process, "its lease ran out while others waited") for process in waited_for if self._silent(process, now_s)
        ]
        return min(found, key=lambda item: (item[0].role != "worker", item[0]), default=None)

    def _dead(self, process: Process, now_s: float) -> str:
        closed_s = self._closed[process]
        witnesses = [witness for witness in closed_s if not self._accused(witness, process)]
        if any(witness.role == "launcher" for witness in witnesses):
            return "it has exited"
        if len(witnesses) >= _WITNESSES:
            return f"its connections to {len(witnesses)} processes closed"
        if witnesses and now_s - closed_s[witnesses[0]] >= self._confirm_s:
            return f"its connection to {witnesses[0]} closed"
        return ""

    def _accused(self, witness: Process, process: Process) -> bool:
        """A worker and a server accuse each other: then the server is believed, which all need."""
        return process.role == "server" and process in self._closed.get(witness, ())

    def _silent(self, process: Process, now_s: float) -> bool:
        heard_s = self._heard_s.setdefault(process, now_s)
        since_s = heard_s if heard_s >= self._again_s else self._back_s
        return now_s - since_s > self._lease_s and not self._cut_off_s
