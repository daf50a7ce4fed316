"""Starts the roles of a run, shows their output, notices their ends at once, and stops the rest in order."""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dynamix_ps.launch.interrupts import Interrupts
from dynamix_ps.launch.logs import RoleLog
from dynamix_ps.launch.plan import RoleSpec, role_environment
from dynamix_ps.launch.process import RoleProcess
from dynamix_ps.launch.verdict import Ending, Limits, Progress, RoleStatus, how_it_ended, interrupted, judge

TICK_S = 0.2
_STOP_ORDER = ("worker", "server", "scheduler", "arbitrator")


class Supervisor:
    """Runs in one thread: one loop takes in the output of all roles and their ends.

    Args:
        roles: what to start.
        environ: the launcher's environment.
        logs_dir: gets one `<role>.log` per role.
        show: called with (role, line) for everything they print.
        observe: called every TICK_S; returns what the workers' hooks have reported.
        interrupts: signals to the launcher.
        limits: how long each phase may take.
        groups: control groups, by name of the role to start there.
    """

    def __init__(
        self,
        roles: Sequence[RoleSpec],
        environ: Mapping[str, str],
        logs_dir: Path,
        show: Callable[[str, str], None],
        observe: Callable[[], Progress],
        interrupts: Interrupts,
        limits: Limits,
        groups: Mapping[str, Path],
    ) -> None:
        self._roles = roles
        self._environ = environ
        self._logs_dir = logs_dir
        self._show = show
        self._observe = observe
        self._interrupts = interrupts
        self._limits = limits
        self._groups = groups
        self._selector = selectors.DefaultSelector()
        self._processes: list[RoleProcess] = []
        self._began_s = 0.0

    def run(self) -> Ending:
        """Start all roles, wait for the end of the run, stop the remaining roles, and return how the run ended.

        Raises:
            EnvironmentNotReady: a role could not be started; the roles before it are stopped.
        """
        self._began_s = time.monotonic()
        ending: Ending | None = None
        try:
            for spec in self._roles:
                self._start(spec)
            while ending is None:
                self._pump(TICK_S)
                ending = self._judge()
            notes = (*ending.notes, *self._lost_arbitrator())
        finally:
            self._stop(orderly=ending is not None and not ending.culprits)
            self._selector.close()
        problems = tuple(process.log.problem for process in self._processes if process.log.problem)
        return Ending(ending.exit_code, ending.reason, ending.culprits, (*notes, *problems))

    def last_lines(self, name: str) -> tuple[str, ...]:
        """The last lines that a role has printed."""
        return next((process.log.last_lines for process in self._processes if process.spec.name == name), ())

    def _start(self, spec: RoleSpec) -> None:
        log = RoleLog(self._logs_dir / f"{spec.name}.log")
        process = RoleProcess(spec, role_environment(spec, self._environ), log, self._groups.get(spec.name))
        self._processes.append(process)
        self._selector.register(process.pipe, selectors.EVENT_READ, process)

    def _judge(self) -> Ending | None:
        if self._interrupts.count:
            self._show("launcher", f"{self._interrupts.first}: stopping in order; a second one kills")
            return interrupted(self._interrupts.first)
        progress = self._observe()
        return judge([self._status(process) for process in self._processes], progress, self._elapsed(), self._limits)

    def _lost_arbitrator(self) -> list[str]:
        """Training goes on without the arbitrator, but the user should know."""
        lost = [process for process in self._processes if process.spec.role == "arbitrator" and not process.running]
        return [f"{process.spec.name} {how_it_ended(process.exit_code)} during the run" for process in lost]

    def _status(self, process: RoleProcess) -> RoleStatus:
        spec, ended_s = process.spec, process.ended_s
        after_s = 0.0 if ended_s is None else ended_s - self._began_s
        return RoleStatus(spec.name, spec.role, spec.rank, process.exit_code, after_s, process.stopped)

    def _elapsed(self) -> float:
        return time.monotonic() - self._began_s

    def _pump(self, duration_s: float) -> None:
        """Show output for `duration_s`, then notice which roles have ended."""
        deadline = time.monotonic() + duration_s
        while (left_s := deadline - time.monotonic()) > 0:
            if not self._selector.get_map():
                time.sleep(left_s)
                break
            for key, _ in self._selector.select(left_s):
                process: RoleProcess = key.data
                lines, more = process.read()
                for line in lines:
                    self._show(process.spec.name, line)
                if not more:
                    self._selector.unregister(process.pipe)
                    process.pipe.close()
        for process in self._processes:
            if process.poll():
                process.signal(signal.SIGKILL)  # what it has left in its group
                if not process.pipe.closed:
                    self._selector.unregister(process.pipe)
                    process.drain(self._show)

    def _stop(self, orderly: bool) -> None:
        """TERM, then KILL after a grace: role by role in an orderly stop, otherwise all roles at once.

        A second signal to the launcher kills all.
        """
        grace_s = self._limits.stop_grace_s if orderly else self._limits.fail_grace_s
        for roles in ([role] for role in _STOP_ORDER) if orderly else [_STOP_ORDER]:
            members = [process for process in self._processes if process.spec.role in roles and process.running]
            for process in members:
                process.signal(signal.SIGTERM)
                process.signal(signal.SIGCONT)  # a stopped role gets SIGTERM only when it goes on
            deadline = time.monotonic() + grace_s
            while any(process.running for process in members):
                if self._interrupts.count >= 2 or time.monotonic() >= deadline:
                    self._kill([p for p in self._processes if p.running] if self._interrupts.count >= 2 else members)
                self._pump(TICK_S / 4)

    def _kill(self, processes: Sequence[RoleProcess]) -> None:
        for process in processes:
            if process.running:
                process.signal(signal.SIGKILL)
