"""Decides when a run is over, and stops its roles in order."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from dynamix_ps.launch.host.process import how_it_ended
from dynamix_ps.launch.job.elastic_hosts import ElasticHosts
from dynamix_ps.launch.job.interrupts import Interrupts
from dynamix_ps.launch.job.role_state import RoleState
from dynamix_ps.launch.job.shown_output import Show
from dynamix_ps.launch.job.verdict import (
    Ending,
    Limits,
    RoleStatus,
    RunProgress,
    goes_on_without,
    interrupted,
    judge,
    left_behind,
    lost_hosts,
)

TICK_S = 0.2
_STOP_ORDER = ("worker", "server", "scheduler", "arbitrator")


class Supervisor:
    """Runs in one thread: one loop takes in the output of all roles and their ends.

    Args:
        hosts: prepared, with all roles.
        show: shows lines of the "launcher" that the user should see at once.
        observe: called every TICK_S; returns the reports of the workers' hooks.
        interrupts: signals to the launcher.
        limits: how long each phase may take.
    """

    def __init__(
        self,
        hosts: ElasticHosts,
        show: Show,
        observe: Callable[[], RunProgress],
        interrupts: Interrupts,
        limits: Limits,
    ) -> None:
        self._hosts, self._show, self._observe = hosts, show, observe
        self._interrupts, self._limits = interrupts, limits
        self._began_s = 0.0
        self._progress = RunProgress()
        self._left_behind_s: dict[str, float] = {}  # since when

    def run(self) -> Ending:
        """Start all roles, wait for the end of the run, stop the remaining roles, and return how the run ended.

        Raises:
            DynamixError: a role could not be started, or a host refused a request; all other roles are stopped.
        """
        self._began_s = time.monotonic()
        ending: Ending | None = None
        try:
            self._hosts.begin()
            while ending is None:
                self._hosts.pump(TICK_S)
                self._hosts.pass_requests_on()
                self._hosts.check()
                ending = self._judge()
                if ending is None:
                    self._restart()
            notes = (*ending.notes, *self._lost_arbitrator())
        finally:
            self._stop(orderly=ending is not None and not ending.culprits and not self._hosts.lost)
        problems = tuple(state.log.problem for state in self._hosts.roles.values() if state.log.problem)
        return replace(ending, notes=(*notes, *problems))

    def last_lines(self, name: str) -> tuple[str, ...]:
        """The last lines that a role has printed."""
        state = self._hosts.roles.get(name)
        return state.log.last_lines if state else ()

    def _restart(self) -> None:
        """Start lost roles again when they are due: workers and servers only while the job can take them in."""
        self._hosts.restart_scheduler()
        away = self._progress.lost | self._progress.left
        there = self._progress.started - away
        if self._progress.founded and not self._progress.finished and not self._progress.finishing:
            self._hosts.restart(there)
            return
        running = [state for state in self._running() if state.role.role == "worker"]
        if self._progress.finished and all(state.starts and state.role.rank not in there for state in running):
            self._signal(running, signal.SIGKILL)  # the others have finished, and it would wait for them

    def _judge(self) -> Ending | None:
        if self._interrupts.count:
            self._show("launcher", [f"{self._interrupts.first}: stopping in order; a second one kills"], True)
            return interrupted(self._interrupts.first)
        progress = self._progress = self._observe()
        if ending := self._without_lost_hosts():
            return ending
        roles = [self._status(state) for state in self._states()]
        self._end_left_behind(left_behind(roles, progress))
        return judge(roles, progress, self._elapsed(), self._limits)

    def _without_lost_hosts(self) -> Ending | None:
        """Let the job go on without its lost hosts. Returns how the job ends if it needs one of them."""
        lost = self._hosts.lost
        on = {name: [state.role for state in self._states() if state.role.host == name] for name in lost}
        needed = {
            name: why
            for name, why in lost.items()
            if not goes_on_without([role.role for role in on[name]], self._progress, self._limits)
        }
        if needed:
            names = {name: [role.name for role in on[name]] for name in needed}
            return lost_hosts(needed, names, self._progress)
        for name in lost:
            self._hosts.go_on_without(name)
        return None

    def _end_left_behind(self, names: Sequence[str]) -> None:
        """Kill these roles if they do not end by themselves soon."""
        now_s = self._elapsed()
        since_s = self._left_behind_s = {name: self._left_behind_s.get(name, now_s) for name in names}
        late = [name for name in names if now_s - since_s[name] >= self._limits.early_exit_s]
        self._hosts.signal(late, signal.SIGKILL)

    def _states(self) -> list[RoleState]:
        return [state for state in self._hosts.roles.values() if not state.absent]

    def _lost_arbitrator(self) -> list[str]:
        """Training goes on without the arbitrator, but the user should know."""
        lost = [s for s in self._states() if s.role.role == "arbitrator" and s.exit_code is not None]
        return [f"{state.role.name} {how_it_ended(state.exit_code)} during the run" for state in lost]

    def _status(self, state: RoleState) -> RoleStatus:
        role, ended_s = state.role, state.ended_s
        after_s = 0.0 if ended_s is None else ended_s - self._began_s
        return RoleStatus(
            role.name,
            role.role,
            role.rank,
            state.exit_code,
            after_s,
            state.suspended,
            late=state.starts > 0,
            incarnation=state.incarnation,
            lost_with=state.lost_with,
            awaited=role.role == "scheduler" and state.exit_code is not None and self._hosts.awaits_scheduler,
        )

    def _elapsed(self) -> float:
        return time.monotonic() - self._began_s

    def _stop(self, orderly: bool) -> None:
        """TERM, then KILL after a grace: role by role in an orderly stop, otherwise all roles at once.

        A second signal to the launcher kills all.
        """
        if orderly:
            self._hosts.end_job()
        grace_s = self._limits.stop_grace_s if orderly else self._limits.fail_grace_s
        for kinds in ([role] for role in _STOP_ORDER) if orderly else [_STOP_ORDER]:
            members = [state for state in self._running() if state.role.role in kinds]
            self._signal(members, signal.SIGTERM)
            self._signal(members, signal.SIGCONT)  # a stopped role gets SIGTERM only when it goes on
            deadline_s = time.monotonic() + grace_s
            while left := [state for state in members if state in self._running()]:
                if self._interrupts.count >= 2 or time.monotonic() >= deadline_s:
                    self._signal(self._running() if self._interrupts.count >= 2 else left, signal.SIGKILL)
                self._hosts.pump(TICK_S / 4)

    def _running(self) -> list[RoleState]:
        """Roles that run on hosts that the launcher still reaches."""
        return [state for state in self._states() if state.running and state.role.host not in self._hosts.lost]

    def _signal(self, states: Sequence[RoleState], number: signal.Signals) -> None:
        self._hosts.signal([state.role.name for state in states], number)
