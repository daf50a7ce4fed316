"""Hosts that come into a job that goes on: lost ones that are reached again, and new ones that a user names."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from dynamix_ps.config.load import check_rules
from dynamix_ps.config.schema import Config, Host
from dynamix_ps.errors import DynamixError, UsageError
from dynamix_ps.launch.job.away_hosts import AwayHosts
from dynamix_ps.launch.job.code_sync import CodeCopy
from dynamix_ps.launch.job.host_state import HostState
from dynamix_ps.launch.job.instructions import Instructions
from dynamix_ps.launch.job.role_state import RoleState
from dynamix_ps.launch.messages.agent_messages import FromAgent
from dynamix_ps.launch.messages.folder_mirror import FolderReceiver
from dynamix_ps.launch.preflight.late_host import Fit, LateHost
from dynamix_ps.launch.roles.plan import JobRole
from dynamix_ps.launch.targets.host_links import HostLinks
from dynamix_ps.run_record.run_folder import RunFolder

_ANSWERED_S = 3.0  # whoever asks for a host has read by then that it is refused, and has no request under way


class Arrivals:
    """The hosts that the launcher tries to reach, one agent at a time each.

    Args:
        roles, links, states, away, instructions: of the job.
        folder: the launcher's run folder.
        tell: records an event.
        start: called with a role and how often it was started before, when its host is ready.
        failed: called with a role whose host has not come.
    """

    def __init__(
        self,
        roles: Mapping[str, RoleState],
        links: HostLinks,
        states: dict[str, HostState],
        away: AwayHosts,
        instructions: Instructions,
        folder: RunFolder,
        tell: Callable[..., None],
        start: Callable[[str, int], None],
        failed: Callable[[str, float], None],
    ) -> None:
        self._roles, self._links, self._states, self._away = roles, links, states, away
        self._instructions, self._folder = instructions, folder
        self._tell, self._start, self._failed = tell, start, failed
        self._new: dict[str, list[JobRole]] = {}  # the roles for which each new host is to come, as they were before
        self._copies: dict[str, CodeCopy] = {}  # on their way to new hosts
        self._refused_s: dict[str, float] = {}  # when, monotonic
        self.fit: Fit | None = None  # what new hosts are compared with

    def expect(self, state: RoleState, host: str, slots: int) -> bool:
        """A user wants a worker, which does not run, on this host. Returns whether it is to start there.

        `slots`: for how many workers a new host has room: others get it that have no host, or have lost theirs.
        """
        role, now_s = state.role, time.monotonic()
        if role.host == host:
            return True
        if now_s - self._refused_s.get(host, -_ANSWERED_S) < _ANSWERED_S:
            return False
        try:
            coming = [role, *self._homeless(role)[: slots - 1]]
            config = self._with_host(coming, host)
            self._links.target.admit(host)
        except DynamixError as error:
            self._refuse(host, role, str(error))
            return False
        self._instructions.config = config
        self._new[host] = coming
        for one in coming:
            self._roles[one.name].role = replace(one, host=host)
            self._away.expect(host, one.name)
        return True

    def advance(self, now_s: float) -> None:
        """Reach the hosts whose roles are due, and start these as soon as the hosts are ready."""
        for host in self._away.to_reach(now_s):
            self._reach(host)
        for host in self._away.awaited:
            state = self._states[host]
            if host in self._copies:
                self._connect_after(self._copies[host], host)
            elif state.ready is not None:
                self._welcome(host, state.ready.address)
            elif reason := self._links[host].lost:
                self.give_up(host, reason)
            elif self._away.is_late(host, now_s):
                patience_s = self._away.patience_s
                self.give_up(host, f"not ready within {patience_s:g} s; see its load and its disk")
            elif state.check is not None:
                self._judge(host, state.check)

    def receive(self, host: str, message: FromAgent) -> None:
        """Take a message of any agent: it may be an answer about a new host."""
        for awaited in self._away.awaited:
            if (check := self._states[awaited].check) is not None:
                check.receive(host, message)

    def give_up(self, host: str, reason: str) -> None:
        """An attempt at a host has failed. The next one follows after a longer wait, once one of its roles is due.

        A new host that has failed is forgotten.
        """
        now_s = time.monotonic()
        if host in self._links:
            self._links[host].leave()
        roles = self._away.give_up(host, now_s)
        if (former := self._new.pop(host, None)) is not None:
            self._states[host].finished = True
            for role in former:
                self._roles[role.name].role = role
            self._instructions.config = _placed(self._instructions.config, former, host, slots=0)
            self._refuse(host, former[0], reason)
            roles = [name for name in roles if name != former[0].name]  # of that one the user knows
        else:
            self._tell("host_not_back", host=host, reason=reason, roles=roles)
        for name in roles:
            self._failed(name, now_s)

    def _homeless(self, first: JobRole) -> list[JobRole]:
        """The other workers that have no host, or have lost theirs."""
        others = (state.role for state in self._roles.values() if state.role.name != first.name)
        return [one for one in others if one.role == "worker" and (not one.host or one.host in self._away)]

    def _with_host(self, coming: Sequence[JobRole], host: str) -> Config:
        """Raises UsageError, ConfigError: the job cannot have these workers there."""
        if has := [other.role.name for other in self._roles.values() if other.role.host == host]:
            raise UsageError(f"it has {', '.join(has)} of this job already, and gets no further roles; name another")
        there = [replace(role, host=host) for role in coming]
        return check_rules(_placed(self._instructions.config, there, host, len(there)), f"--host {host}")

    def _refuse(self, host: str, role: JobRole, reason: str) -> None:
        self._refused_s[host] = time.monotonic()
        self._tell("host_refused", host=host, reason=reason, roles=[role.name])

    def _reach(self, host: str) -> None:
        """Start an agent on a host that has none, or has lost it."""
        self._away.leaving.discard(host)
        if host in self._states:
            self._states[host].files.close()
        self._states[host] = HostState(FolderReceiver(self._folder.path))
        config = self._instructions.config
        if host in self._new and config.sync == "rsync":
            self._copies[host] = CodeCopy(config, self._links.target, host)
        else:
            self._connect(host)

    def _connect_after(self, copy: CodeCopy, host: str) -> None:
        if copy.is_alive():
            return
        del self._copies[host]
        if copy.problem:
            self.give_up(host, copy.problem)
        else:
            self._connect(host)

    def _connect(self, host: str) -> None:
        try:
            self._links.reach_again(host)
        except DynamixError as error:
            self.give_up(host, str(error))
            return
        if host in self._new:
            assert self.fit is not None
            instructions = self._instructions
            self._states[host].check = LateHost(host, instructions.config, self._links, instructions.begun, self.fit)
        else:
            self._prepare(host)

    def _judge(self, host: str, check: LateHost) -> None:
        """Let a new host get ready if it fits to the job."""
        found = check.found([name for name in self._links if name != host and name not in self._away])
        if found is None:
            return
        if blockers := [str(one).removeprefix(f"host {host}: ") for one in found if one.status == "blocker"]:
            self.give_up(host, "\n".join(blockers))
            return
        for one in found:
            self._tell("degraded", what=one.name, detail=f"{one.detail}; {one.fix}")
        self._states[host].check = None
        self._prepare(host)

    def _prepare(self, host: str) -> None:
        link = self._links[host]
        link.send(self._instructions.prepare(host, link.shares_run_folder, resume=None))

    def _welcome(self, host: str, address: str) -> None:
        """A host is ready: start the roles that are due there."""
        link = self._links[host]
        link.send(self._instructions.begin(host, address, late=True))
        if self._instructions.speeds is not None:
            link.send(self._instructions.speeds)
        if roles := self._new.pop(host, None):
            self._tell("host_joined", host=host, address=address, workers=[role.rank for role in roles])
        for name, starts in self._away.back(host).items():
            self._start(name, starts)


def _placed(config: Config, roles: Sequence[JobRole], host: str, slots: int) -> Config:
    """The same job with these workers on the hosts that they name, and so many slots on `host`."""
    cluster, place = config.cluster, {role.rank: role.host or None for role in roles}
    workers = tuple(
        worker.model_copy(update={"host": place.get(rank, worker.host)}) for rank, worker in enumerate(cluster.workers)
    )
    hosts = {**cluster.hosts, host: cluster.hosts.get(host, Host()).model_copy(update={"slots": slots})}
    return config.model_copy(update={"cluster": cluster.model_copy(update={"workers": workers, "hosts": hosts})})
