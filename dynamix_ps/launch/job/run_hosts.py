"""The hosts of a run: prepares them, starts all roles, receives what their agents tell, and ends them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from dynamix_ps.config.role_hosts import role_hosts
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import DynamixError, EnvironmentNotReady
from dynamix_ps.launch.job.away_hosts import AwayHosts
from dynamix_ps.launch.job.host_state import HostState
from dynamix_ps.launch.job.instructions import Instructions, arriving
from dynamix_ps.launch.job.interrupts import Interrupts
from dynamix_ps.launch.job.logs import RoleLog
from dynamix_ps.launch.job.role_state import RoleState
from dynamix_ps.launch.job.shown_output import Show
from dynamix_ps.launch.messages.agent_messages import (
    Alive,
    CleanedUp,
    CleanUp,
    FilePart,
    FromAgent,
    Notice,
    Prepared,
    RequestRefused,
    RoleEnded,
    RoleOutput,
    RunEvent,
    SetSpeeds,
    Signal,
    Started,
    Suspended,
)
from dynamix_ps.launch.messages.event_log import EventLog
from dynamix_ps.launch.messages.folder_mirror import FolderReceiver, parts_of
from dynamix_ps.launch.preflight.inspection import HostReport, Inspection
from dynamix_ps.launch.roles.authority import Authority
from dynamix_ps.launch.roles.plan import JobRole, hosts_with_roles, job_roles
from dynamix_ps.launch.targets.agent_link import AgentLink, Target
from dynamix_ps.launch.targets.host_links import HostLinks
from dynamix_ps.run_record.run_folder import RunFolder

PREPARE_S = 60.0  # until all hosts are ready
_FINISH_S = 20.0  # without news: the rest of the files comes, and removing what the run held takes a while
_TICK_S = 0.05


class HostRefused(DynamixError):
    """A host refused a request; `exit_code` is the one of its error."""

    def __init__(self, exit_code: int, reason: str) -> None:
        super().__init__(reason)
        self.exit_code = exit_code


class RunHosts:
    """All hosts that have a role. No host leaves or joins; elastic_hosts.py adds that.

    Args:
        config: with all hosts written out.
        folder: the launcher's run folder.
        target: how hosts are reached.
        events: takes the events that agents send.
        show: called for everything that roles print.
        interrupts: signals to the launcher.
        authority: makes the certificates of the hosts; None: calls between roles are not encrypted.
    """

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        target: Target,
        events: EventLog,
        show: Show,
        interrupts: Interrupts,
        authority: Authority | None = None,
    ) -> None:
        self._config, self._folder = config, folder
        self._events, self._show, self._interrupts = events, show, interrupts
        self._instructions = Instructions(config, folder, authority)
        self.roles = {role.name: RoleState(role, RoleLog(folder.log_file(role.name))) for role in job_roles(config)}
        self._links = HostLinks(target, self._receive)
        self._inspection: Inspection | None = None  # while it goes on
        self._states = {name: HostState(FolderReceiver(folder.path)) for name in hosts_with_roles(config)}
        self._news_s = 0.0  # monotonic
        self._refusal: HostRefused | None = None  # the first one
        self._away = AwayHosts(PREPARE_S)  # none, in such a job
        self.problem: str | None = None  # why part of the record is lost

    @property
    def names(self) -> tuple[str, ...]:
        """Of all hosts."""
        return tuple(self._states)

    @property
    def lost(self) -> dict[str, str]:
        """Hosts whose link has ended before they have finished, with the reason.

        Hosts that an elastic job goes on without are left out.
        """
        lost = self._links.lost.items()
        return {name: reason for name, reason in lost if not self._states[name].finished and name not in self._away}

    @property
    def _ready(self) -> dict[str, Prepared]:
        """What the hosts told that are ready."""
        return {name: state.ready for name, state in self._states.items() if state.ready is not None}

    @property
    def emulation(self) -> str:
        """How speeds are emulated, in words."""
        told = {name: ready.emulation for name, ready in self._ready.items()}
        return "; ".join(told.values() if len(told) == 1 else (f"{name}: {text}" for name, text in told.items()))

    def inspect(self) -> HostReport | None:
        """Reach all hosts and ask for their facts. None if a signal has come to the launcher.

        Raises:
            EnvironmentNotReady: the command that reaches a host cannot be started.
        """
        self._links.connect(self.names)
        self._inspection = Inspection(self._config, self._links, lambda: self._interrupts.count > 0)
        try:
            return self._inspection.run(rates=False)
        finally:
            self._inspection = None

    def prepare(self, run_id: str, token: str, resume: Path | None) -> bool:
        """Reach all hosts, if need be, and make them ready.

        Returns False if a signal has come to the launcher.

        Raises:
            DynamixError: a host cannot be reached, or refuses; the text names it.
        """
        if not self._links:
            self._links.connect(self.names)
        self._instructions.run_id, self._instructions.token = run_id, token
        for name, link in self._links.items():
            link.send(self._instructions.prepare(name, link.shares_run_folder, resume))
        on_the_way: dict[str, Iterator[FilePart]] = {}  # the rest of the checkpoint, for each host that needs it
        if resume is not None:
            needing = [name for name, link in self._links.items() if not link.shares_run_folder]
            on_the_way = {name: parts_of(resume, arriving(resume)) for name in needing}
        deadline_s = time.monotonic() + PREPARE_S
        while len(self._ready) < len(self._links) or on_the_way:
            self.pump(_TICK_S)
            for name, parts in list(on_the_way.items()):
                if not _send_some(self._links[name], parts):
                    del on_the_way[name]
            self.check()
            if self._interrupts.count:
                return False
            if self.lost:
                raise EnvironmentNotReady("\n".join(f"host {name}: {reason}" for name, reason in self.lost.items()))
            late = ", ".join(name for name in self._links if name not in self._ready)
            if late and time.monotonic() > deadline_s:
                raise EnvironmentNotReady(f"host {late}: not ready within {PREPARE_S:g} s; see its load and its disk")
        _check_addresses({name: ready.address for name, ready in self._ready.items()})
        return True

    def begin(self) -> None:
        """Start all roles. Raises DynamixError when one cannot be started."""
        ready, messages = self._ready, []
        self._instructions.all_ready(ready, ready[role_hosts(self._config.cluster).home or ""])
        for name, link in self._links.items():
            messages.append((link, self._instructions.begin(name, ready[name].address)))
            self.pump(0.0)  # many certificates take a while, in which the agents must hear of the launcher
        for link, message in messages:
            link.send(message)
        self.check()

    def change(self, speeds: Sequence[float]) -> None:
        """Emulate other speeds, one per worker; empty: those of the cluster file. Raises DynamixError on refusal."""
        self._instructions.speeds = message = SetSpeeds(tuple(speeds))
        for name, link in self._links.items():
            if name not in self._away:
                link.send(message)
        self.check()

    def signal(self, names: Iterable[str], number: int) -> None:
        """Send a signal to roles that run."""
        wanted = set(names)
        for host, link in self._links.items():
            here = tuple(name for name in wanted if self.roles[name].role.host == host and self.roles[name].running)
            if here and not link.lost:
                link.send(Signal(here, number))

    def pump(self, duration_s: float) -> None:
        """Receive messages for `duration_s`."""
        self._links.pump(duration_s)

    @property
    def unconfirmed(self) -> list[str]:
        """Hosts that have not confirmed that nothing of the run is left on them."""
        left = ((name, self._states[name].ready) for name in self._links if not self._states[name].finished)
        return [name for name, ready in left if ready is not None or self._links[name].lost]

    def check(self) -> None:
        """Raises DynamixError if a host has refused a request."""
        if self._refusal is not None:
            raise self._refusal

    def finish(self) -> None:
        """Let all hosts send the rest of their files and remove what the run held.

        A lost host does so when its lease ends, and a host that is not ready yet when its stream closes.
        """
        ready = {name: link for name, link in self._links.items() if name in self._ready and not link.lost}
        for link in ready.values():
            link.send(CleanUp())
        self._news_s = time.monotonic()
        while any(not self._states[name].finished and not link.lost for name, link in ready.items()):
            self.pump(_TICK_S)
            if time.monotonic() - self._news_s > _FINISH_S or self._interrupts.count >= 2:
                break
        self._links.close()
        for state in self.roles.values():
            state.log.write(b"", final=True)
        for host in self._states.values():
            host.files.close()

    def _receive(self, host: str, message: FromAgent) -> None:
        if isinstance(message, Notice):
            self._notice(host, message)
        elif self._inspection is not None:
            self._inspection.receive(host, message)
        else:
            self._take_in(host, message)

    def _notice(self, host: str, notice: Notice) -> None:
        """A host got a notice to end, so the run ends."""
        self._interrupts.notice(notice.signal, host)

    def _take_in(self, host: str, message: FromAgent) -> None:
        if not isinstance(message, Alive):
            self._news_s = time.monotonic()
        if isinstance(message, RoleOutput):
            state = self._state(host, message.role)
            lines = state.log.write(message.data, final=message.last)
            self._show(message.role, lines, state.log.problem is not None)
        elif isinstance(message, Started):
            self._state(host, message.role).started = True
        elif isinstance(message, RoleEnded):
            self._ended(self._state(host, message.role), message)
        elif isinstance(message, Suspended):
            self._state(host, message.role).suspended = message.suspended
        elif isinstance(message, FilePart):
            self._take(host, message)
        elif isinstance(message, RunEvent):
            self._record(host, message)
        elif isinstance(message, Prepared):
            self._states[host].ready = message
        elif isinstance(message, CleanedUp):
            self._states[host].finished = True
        elif isinstance(message, RequestRefused):
            self._refused(host, message)

    def _ended(self, state: RoleState, message: RoleEnded) -> None:
        state.exit_code, state.ended_s = message.exit_code, time.monotonic() - message.ago_s

    def _refused(self, host: str, message: RequestRefused) -> None:
        reason = message.reason if len(self.names) == 1 else f"host {host}: {message.reason}"
        self._refusal = self._refusal or HostRefused(message.exit_code, reason)

    def _state(self, host: str, name: str) -> RoleState:
        state = self.roles.get(name)
        if state is None or state.role.host != host:
            reason = f"host {host} told of {name!r}, which is none of its roles; use one version on all hosts"
            self._refusal = self._refusal or HostRefused(EnvironmentNotReady.exit_code, reason)
            return RoleState(JobRole(name, "worker", host=host), RoleLog(Path(os.devnull)))
        return state

    def _take(self, host: str, part: FilePart) -> None:
        try:
            self._states[host].files.take(part)
        except (OSError, ValueError) as error:
            self.problem = self.problem or f"files of host {host}: {error}; part of the record is lost"

    def _record(self, host: str, event: RunEvent) -> None:
        """Record an event of an agent, with the host in its detail where there are several."""
        fields = dict(event.fields)
        if len(self.names) > 1 and "detail" in fields:
            fields["detail"] = f"host {host}: {fields['detail']}"
        self._tell(event.event, **fields)

    def _tell(self, kind: str, **fields: object) -> None:
        try:
            self._events.event(kind, **fields)
        except OSError as error:
            self.problem = self.problem or f"recording: {error.strerror or error}; part of the record is lost"


def _check_addresses(addresses: Mapping[str, str]) -> None:
    """Raises EnvironmentNotReady if two hosts have found the same address for themselves."""
    first: dict[str, str] = {}
    for name, address in addresses.items():
        if (other := first.setdefault(address, name)) != name:
            raise EnvironmentNotReady(
                f"cluster.hosts.{name}: by its routes its address is {address}, as that of {other} is; "
                "give both the address under which the others reach it, or name one host if they are the same machine"
            )


def _send_some(link: AgentLink, parts: Iterator[FilePart]) -> bool:
    """Send as many parts as the link takes now. Returns whether more may be left."""
    while link.has_room:
        part = next(parts, None)
        if part is None:
            return False
        link.send(part)
    return True
