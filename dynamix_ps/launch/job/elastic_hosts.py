"""The hosts of an elastic job: the launcher starts lost roles and lost hosts again while the others go on.

Without `elastic.min_workers` in the cluster file, this module does nothing of its own.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Collection
from typing import Any

from dynamix_ps.config.role_hosts import role_hosts
from dynamix_ps.errors import PeerLostError
from dynamix_ps.launch.host.process import how_it_ended
from dynamix_ps.launch.job.arrivals import Arrivals
from dynamix_ps.launch.job.logs import RoleLog
from dynamix_ps.launch.job.restarts import RestartBudget, Restarts
from dynamix_ps.launch.job.role_state import RoleState
from dynamix_ps.launch.job.run_hosts import RunHosts
from dynamix_ps.launch.messages.agent_messages import (
    CleanUp,
    FilePart,
    ForCoordinator,
    FromAgent,
    Notice,
    RequestRefused,
    RoleEnded,
    StartAgain,
)
from dynamix_ps.launch.preflight.late_host import Fit
from dynamix_ps.launch.roles.plan import JobRole
from dynamix_ps.run_record.requests import JOIN, Requests


class ElasticHosts(RunHosts):
    """All hosts that have a role. Arguments: see `RunHosts`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._restarts = Restarts(self._config.elastic.restarts)
        self._scheduler_restarts = RestartBudget()
        self._requests = Requests(self._folder)
        self._job_ends = False
        self._arrivals = Arrivals(
            self.roles,
            self._links,
            self._states,
            self._away,
            self._instructions,
            self._folder,
            self._tell,
            self._start_again,
            self._restarts.ended,
        )

    @property
    def given_up(self) -> frozenset[str]:
        """Hosts that were lost or got a notice to end, and are not back."""
        gone = {*self._away.leaving, *self.lost}
        return frozenset(name for name in self.names if name in gone or name in self._away)

    def compare_later(self, fit: Fit) -> None:
        """What hosts are compared with that the cluster file does not name, should a user have one join."""
        self._arrivals.fit = fit

    def pass_requests_on(self) -> None:
        """Pass on the requests of users: workers that leave, workers and servers that join."""
        if not self._config.is_elastic:
            return
        for asked in self._requests.read():
            if asked.kind == JOIN:
                state = self.roles.get(asked.name)
                if state is not None and (state.absent or state.exit_code is not None):
                    host = asked.host or state.role.host
                    if not host or not self._arrivals.expect(state, host, asked.slots):
                        continue
                    self._away.at_once(host)
                    if not self._away.waits_for(asked.name):
                        self._restarts.at_once(asked.name)
            elif asked.role == "worker" and asked.name in self.roles:
                self._ask_to_leave(self.roles[asked.name].role)

    @property
    def awaits_scheduler(self) -> bool:
        """Whether the scheduler is lost and will be started again."""
        return self._scheduler_restarts.due_s is not None

    def restart_scheduler(self) -> None:
        """Start a lost scheduler again when it is due and a running role needs it for an orderly end."""
        due_s = self._scheduler_restarts.due_s
        if due_s is None or time.monotonic() < due_s:
            return
        if any(state.running and state.role.role in ("worker", "server") for state in self.roles.values()):
            self._scheduler_restarts.due_s = None
            (state,) = (state for state in self.roles.values() if state.role.role == "scheduler")
            self._start_again(state.role.name, state.starts + 1)

    def restart(self, there: Collection[int]) -> None:
        """Start lost workers and servers again when they are due. Call this as long as the job goes on.

        `there`: the workers that take part.
        """
        now_s = time.monotonic()
        for state in self.roles.values():
            state.entered |= state.role.rank in there
        for name, starts in self._restarts.due(now_s).items():
            host = self.roles[name].role.host
            if host in self._away or self._links[host].lost:
                self._away.wait_for(host, name, starts)
            elif host not in self._away.leaving:
                self._start_again(name, starts)
        self._arrivals.advance(now_s)

    def _start_again(self, name: str, starts: int) -> None:
        state = self.roles[name]
        self.roles[name] = again = RoleState(state.role, RoleLog(state.log.path))
        again.starts = starts
        self._tell("role_restarted", role=name, restarts=starts)
        self._links[state.role.host].send(StartAgain(name, starts))

    def end_job(self) -> None:
        """The launcher ends the job: from now on a role that ends is not lost, and no worker leaves."""
        self._job_ends = True
        if not self._config.is_elastic or not any(s.running and s.role.role == "worker" for s in self.roles.values()):
            return
        self._tell("stopping")
        mark = self._folder.end_mark
        try:
            mark.touch()
        except OSError as error:
            self.problem = self.problem or f"{mark}: {error.strerror or error}; workers end as if they left the job"
        for link in self._links.values():
            if not link.shares_run_folder and not link.lost:
                link.send(FilePart(mark.relative_to(self._folder.path).as_posix(), 0, 0, b""))

    def go_on_without(self, host: str) -> None:
        """Note that a host is lost and the job goes on: every role of the host has ended."""
        self._away.add(host, time.monotonic())
        link = self._links[host]
        link.leave()
        lost = [state for state in self._started_on(host) if state.exit_code is None]
        self._tell("host_lost", host=host, reason=link.lost, roles=[state.role.name for state in lost])
        for state in lost:
            state.lost_with = host
            self._show(state.role.name, state.log.write(b"", final=True), state.log.problem is not None)
            self._ended(state, RoleEnded(state.role.name, -signal.SIGKILL, 0.0))

    def _notice(self, host: str, notice: Notice) -> None:
        """A host got a notice to end: its workers leave if the others can go on, else the run ends."""
        running = [state.role for state in self.roles.values() if state.running]
        here = [role for role in running if role.host == host]
        stay = [role for role in running if role.role == "worker" and role.host not in (host, *self._away.leaving)]
        least = self._config.elastic.min_workers
        is_starting = not here and not self._has_ended(host)
        if least is None or is_starting or any(role.role != "worker" for role in here) or len(stay) < least:
            return super()._notice(host, notice)
        self._away.leaving.add(host)
        self._tell("host_leaves", host=host, signal=notice.signal, ranks=[role.rank for role in here])
        for role in here:
            self._ask_to_leave(role)
        self._let_go(host)

    def _ended(self, state: RoleState, message: RoleEnded) -> None:
        super()._ended(state, message)
        role = state.role
        if self._config.is_elastic and message.exit_code != 0:
            if role.number is not None:
                self._tell_coordinator(role)
            if not self._job_ends:
                self._go_on(state, message)
        self._let_go(role.host)

    def _go_on(self, state: RoleState, message: RoleEnded) -> None:
        """A role is lost and the job goes on: record the loss, and plan the next start of the role."""
        role = state.role
        if role.number is not None:
            who = {"role": role.role, "slot": role.number}
            self._tell("role_ended", **who, exit_code=message.exit_code, ended_s=time.time() - message.ago_s)
            self._plan_restart(state)
        elif role.role == "scheduler":
            delay_s = self._scheduler_restarts.next_delay_s(time.monotonic())
            self._tell("scheduler_exit", how=how_it_ended(message.exit_code), restart_in_s=delay_s)

    def _let_go(self, host: str) -> None:
        """Let a host that got a notice to end clean up, once nothing runs there."""
        if host in self._away.leaving and self._has_ended(host):
            self._links[host].send(CleanUp())

    def _has_ended(self, host: str) -> bool:
        """Whether every role that was started on the host has ended."""
        return all(state.exit_code is not None for state in self._started_on(host))

    def _started_on(self, host: str) -> list[RoleState]:
        return [state for state in self.roles.values() if state.role.host == host and not state.absent]

    def _plan_restart(self, state: RoleState) -> None:
        """A role has failed. A joiner whose peers were gone before it entered does not use up a restart."""
        name, now_s = state.role.name, time.monotonic()
        was_to_enter = state.role.role == "worker" and state.starts > 0 and not state.entered
        if not was_to_enter or state.exit_code != PeerLostError.exit_code:
            self._restarts.ended(name, now_s)
        elif self._restarts.kept_out(name, now_s):
            self._tell("kept_out", role=name)

    def _take_in(self, host: str, message: FromAgent) -> None:
        self._arrivals.receive(host, message)
        super()._take_in(host, message)

    def _refused(self, host: str, message: RequestRefused) -> None:
        if host in self._away.awaited:
            self._arrivals.give_up(host, message.reason)
        else:
            super()._refused(host, message)

    def _ask_to_leave(self, role: JobRole) -> None:
        state = self.roles[role.name]
        state.asked_to_leave += 1
        self._tell_coordinator(role, state.asked_to_leave)

    def _tell_coordinator(self, role: JobRole, request: int = 0) -> None:
        """Tell the coordinator that a role has ended, or that a worker should leave."""
        assert role.number is not None
        home = role_hosts(self._config.cluster).home or ""
        self._links[home].send(ForCoordinator(role.role, role.number, self.roles[role.name].incarnation, request))
