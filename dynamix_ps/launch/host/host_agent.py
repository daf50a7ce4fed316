"""One run on one host: its roles, quotas, probe, ports and files, as the launcher's messages say.

One class serves the launcher's host, within the launcher, and other hosts, in a process of its own (agent.py).
"""

from __future__ import annotations

import importlib
import os
import resource
import selectors
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamix_ps.addresses import host_port
from dynamix_ps.certificates import Certificates
from dynamix_ps.cgroups import available_cores
from dynamix_ps.config import variables
from dynamix_ps.config.load import load_config
from dynamix_ps.config.role_hosts import address_of, role_hosts
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import DynamixError, EnvironmentNotReady
from dynamix_ps.launch.cleanup.holdings import (
    Holdings,
    make_scratch,
    make_socket_folders,
    new_scratch_path,
    new_shm_prefix,
    recorded_holdings,
)
from dynamix_ps.launch.cleanup.reaper import WHAT, Reaper
from dynamix_ps.launch.cleanup.release import release, release_stale
from dynamix_ps.launch.emulation.speeds import Emulation, choose_emulation
from dynamix_ps.launch.host.forked_roles import ForkedRoles, ForkServer, existing_server
from dynamix_ps.launch.host.host_facts import inspected
from dynamix_ps.launch.host.network_probe import NetworkProbe
from dynamix_ps.launch.host.own_address import own_address
from dynamix_ps.launch.host.reach import Listener, reached
from dynamix_ps.launch.host.role_group import RoleGroup
from dynamix_ps.launch.messages.agent_messages import (
    Alive,
    Begin,
    CleanedUp,
    CleanUp,
    FilePart,
    ForCoordinator,
    FromAgent,
    Inspect,
    Prepare,
    Prepared,
    Reach,
    RequestRefused,
    RunEvent,
    SetSpeeds,
    Signal,
    StartAgain,
    ToAgent,
)
from dynamix_ps.launch.messages.folder_mirror import FolderReceiver, FolderSender
from dynamix_ps.launch.roles.placement import Placement, ThisMachine
from dynamix_ps.launch.roles.plan import RoleSpec, RunPlace, plan_roles, role_environment
from dynamix_ps.metrics.gpu import gpu_models
from dynamix_ps.open_files import SpareFiles
from dynamix_ps.rpc.access import ArbitratorAccess
from dynamix_ps.run_record.run_folder import RunFolder

if TYPE_CHECKING:
    from dynamix_ps.launch.host.exit_reports import ExitReports

_END_GRACE_S = 1.0  # between TERM and KILL for roles that still run when the agent closes
_SPARE_FILES = 24  # for what a loss needs: a process and its log, a connection to the arbitrator, records that are read
_EARLIER_AGENT_S = 20.0  # twice what an agent takes that hears nothing any more


class _Prepared:
    """What the agent holds between `Prepare` and the end."""

    def __init__(self, message: Prepare, config: Config, folder: RunFolder, scratch: Path, shm_prefix: str) -> None:
        self.message, self.config, self.folder, self.scratch = message, config, folder, scratch
        self.shm_prefix = shm_prefix
        self.ranks = [rank for rank, host in enumerate(role_hosts(config.cluster).workers) if host == message.host]
        self.emulation = Emulation("none", "", ())
        self.address = ""
        self.probe: str | None = None
        self.specs: dict[str, RoleSpec] = {}
        self.coordinator: ArbitratorAccess | None = None  # where it would be on this host


class HostAgent:
    """Takes messages by `receive` and answers by `send`. One run, then `close`.

    Args:
        selector: of the loop that runs it; the data of each of its keys is a function to call when the key is ready.
        send: called with every message for the launcher.
        environ: the environment of the roles.
        placement: where the roles run within this host.
        has_room: whether `send` can take messages that could wait.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        send: Callable[[FromAgent], None],
        environ: Mapping[str, str],
        placement: Placement | None = None,
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        self._send, self._environ, self._has_room = send, environ, has_room
        self._placement = placement or ThisMachine()
        self._roles = RoleGroup(selector, send, environ, has_room, before_end=self._send_files)
        self._held = ExitStack()
        self._spare = SpareFiles(_SPARE_FILES)
        self._held.callback(self._spare.close)
        self._listener = Listener(selector)  # for the other hosts, before a run
        self._held.callback(self._listener.close)
        self._run: _Prepared | None = None
        self._reaper: Reaper | None = None
        self._probe: NetworkProbe | None = None
        self._exits: ExitReports | None = None  # of an elastic job, on the home of the roles
        self._files: FolderSender | None = None  # none where the launcher has the same run folder
        self._arriving: FolderReceiver | None = None
        self._finishing = False
        self.finished = False  # nothing follows

    def receive(self, message: ToAgent) -> None:
        """Do what a message says; answer `RequestRefused` where that is impossible."""
        self._check_files()
        try:
            self._follow(message)
        except DynamixError as error:
            self._send(RequestRefused(error.exit_code, str(error)))
        except (OSError, ValueError) as error:
            self._send(RequestRefused(EnvironmentNotReady.exit_code, f"cannot prepare the run: {error}"))

    def tick(self) -> None:
        """Notice what no descriptor shows. Call this a few times per second."""
        self._check_files()
        self._roles.tick()
        if self._reaper is not None and not self._finishing:
            self._check_reaper(self._reaper)
        if self._probe is not None and not self._finishing:
            self._probe.check()
        sent = self._send_files()
        if self._finishing and sent and not self.finished:
            self.close()
            self.finished = True
            self._send(CleanedUp())

    def close(self) -> None:
        """End all roles and remove everything. Idempotent."""
        self._roles.end(_END_GRACE_S)
        self._files = None
        self._held.close()

    def event(self, kind: str, **fields: object) -> None:
        """Pass on an event of the probe or of the reaper."""
        self._send(RunEvent(kind, {name: str(value) for name, value in fields.items()}))

    def _send_files(self) -> bool:
        """Send what is new in the run folder, as far as the link has room. Returns whether all was sent."""
        return self._files is None or self._files.send_news()

    def _check_files(self) -> None:
        if self._spare.give_up_if_needed():
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            detail = f"its limit of {limit} is nearly reached; the last {_SPARE_FILES} are used; raise it: ulimit -n"
            self.event("degraded", what="open files of the launcher", detail=detail)

    def _check_reaper(self, reaper: Reaper) -> None:
        try:
            reaper.check()
        except OSError as error:
            self.event("degraded", what=WHAT, detail=f"the reaper cannot be started again: {error.strerror or error}")
            self._reaper = None

    def _follow(self, message: ToAgent) -> None:
        if isinstance(message, Inspect):
            self._send(inspected(message, self._listener))
        elif isinstance(message, Reach):
            self._send(reached(message))
        elif isinstance(message, Prepare):
            self._prepare(message)
        elif isinstance(message, FilePart):
            self._run_at_hand()
            assert self._arriving is not None
            self._arriving.take(message)
        elif isinstance(message, Begin):
            self._begin(message, self._run_at_hand())
        elif isinstance(message, StartAgain):
            self._start_again(message, self._run_at_hand())
        elif isinstance(message, ForCoordinator):
            self._tell_coordinator(message, self._run_at_hand())
        elif isinstance(message, SetSpeeds):
            self._run_at_hand().emulation.change(message.speeds)
        elif isinstance(message, Signal):
            self._roles.signal(message.roles, message.number)
        elif isinstance(message, CleanUp):
            self._roles.tick()
            self._roles.end(_END_GRACE_S)
            self._finishing = True
            self.tick()
        else:
            assert isinstance(message, Alive)

    def _run_at_hand(self) -> _Prepared:
        if self._run is None:
            raise EnvironmentNotReady("the launcher sent a message before Prepare; use one version on all hosts")
        return self._run

    def _prepare(self, message: Prepare) -> None:
        self._listener.close()
        _enter(message)
        release_stale()
        _outlast_earlier_agent(message)
        scratch = make_scratch(new_scratch_path(message.run_id), sockets=0)
        self._held.callback(shutil.rmtree, scratch, ignore_errors=True)
        folder = RunFolder(Path(message.run_dir or scratch / "run"))
        if not message.run_dir:
            folder.make()
            folder.config_file.write_text(message.config, encoding="utf-8")
            self._files = FolderSender(folder.path, self._send, self._has_room)
        self._arriving = FolderReceiver(folder.path)
        config = load_config(folder.config_file)
        run = _Prepared(message, config, folder, scratch, new_shm_prefix(message.run_id))
        make_socket_folders(scratch, run.ranks)
        run.emulation = choose_emulation(config, message.run_id, available_cores(), run.ranks)
        holdings = Holdings(
            run_id=message.run_id,
            shm_prefix=run.shm_prefix,
            scratch=str(scratch),
            cgroups=tuple(map(str, run.emulation.groups)),
            host=message.host,
        )
        self._held.callback(os.close, holdings.save())
        self._reaper = Reaper(holdings, self)
        self._held.callback(self._reaper.close)
        self._held.callback(release, holdings)
        run.emulation.create()
        run.address = own_address(address_of(config.cluster, message.host), message.peers, message.host)
        ports = (0, 0)
        if message.host == role_hosts(config.cluster).home:
            ports = self._placement.ports(config.cluster.model_copy(update={"host": run.address}))
        log = "probe" if message.run_dir else f"probe-{message.host}"
        self._probe = NetworkProbe(config, message.run_id, scratch, folder.log_file(log), self, message.host)
        self._held.callback(self._probe.close)
        run.probe = self._probe.socket
        self._run = run
        self._send(Prepared(run.address, *ports, run.emulation.description))

    def _begin(self, message: Begin, run: _Prepared) -> None:
        certificates = run.scratch / "certificates" if message.certificates else None
        own = None if certificates is None else Certificates(**message.certificates)
        if certificates is not None and own is not None:
            own.save(certificates)
        arbitrator = host_port(run.address, message.arbitrator_port)
        run.coordinator = ArbitratorAccess(arbitrator, run.message.run_id, run.message.token, run.config.timeouts, own)
        if run.config.is_elastic:
            # not only when the others wait for its words
            importlib.import_module("dynamix_ps.launch.host.exit_reports")
        place = RunPlace(
            run_id=run.message.run_id,
            token=run.message.token,
            config_file=run.folder.config_file,
            run_dir=run.folder.path,
            scratch=run.scratch,
            shm_prefix=run.shm_prefix,
            port=message.port,
            arbitrator_port=message.arbitrator_port,
            cores=len(os.sched_getaffinity(0)),
            gpus=len(gpu_models()),
            slowdowns=run.emulation.slowdowns,
            speeds_emulated=run.emulation.method != "none",
            resume=run.folder.path / run.message.resume if run.message.resume else None,
            probe=run.probe,
            certificates=certificates,
            host=run.message.host,
            addresses=message.addresses,
        )
        specs = plan_roles(run.config, place, self._environ, sys.executable)
        self._fork_roles([spec for spec in specs if spec.role == "worker"], run.config, run.scratch)
        for spec in specs:
            run.specs[spec.name] = spec
            if not (spec.later or message.late):
                self._start(spec, run)

    def _fork_roles(self, workers: list[RoleSpec], config: Config, scratch: Path) -> None:
        """From now on roles are forked, where a server is there or more than one worker will be started."""
        if not config.launch.fork or not workers:
            return
        forked = existing_server(self._environ.get(variables.FORK_SERVER, ""))
        if forked is None:
            if len(workers) + config.is_elastic < 2:
                return
            environ = role_environment(workers[0], self._environ) | {variables.ROLE_NAME: "fork-server"}
            server = ForkServer(scratch, environ)
            self._held.callback(server.close)
            forked = ForkedRoles(server.path)
        self._held.callback(forked.close)
        self._roles.fork_by(forked)

    def _start_again(self, message: StartAgain, run: _Prepared) -> None:
        spec = run.specs[message.role]
        self._start(replace(spec, env={**spec.env, variables.STARTS: str(message.starts)}), run)

    def _tell_coordinator(self, message: ForCoordinator, run: _Prepared) -> None:
        if self._exits is None:
            from dynamix_ps.launch.host.exit_reports import ExitReports  # gRPC is heavy, and most runs do not need it

            assert run.coordinator is not None
            self._exits = ExitReports(run.coordinator)
            self._held.callback(self._exits.close)
        self._exits.tell(message)

    def _start(self, spec: RoleSpec, run: _Prepared) -> None:
        groups: dict[Any, Path] = dict(zip(run.emulation.ranks, run.emulation.groups, strict=True))
        self._roles.start(self._placement.place(spec), groups.get(spec.rank))


def _outlast_earlier_agent(message: Prepare) -> None:
    """Wait until a lost agent of this run has ended its roles: it finds them by run and host alone."""
    deadline_s = time.monotonic() + _EARLIER_AGENT_S
    same = (message.run_id, message.host)
    while any((held.run_id, held.host) == same and not held.elsewhere for held in recorded_holdings()):
        if time.monotonic() > deadline_s:
            raise EnvironmentNotReady(
                f"host {message.host}: an earlier agent of this run has not ended within {_EARLIER_AGENT_S:g} s; see "
                "its processes, and end them"
            )
        time.sleep(0.1)
        release_stale()


def _enter(message: Prepare) -> None:
    """Change to the folder from which the job was launched: the roles need its files."""
    try:
        os.chdir(message.cwd)
    except OSError as error:
        raise EnvironmentNotReady(
            f"host {message.host} has no folder {message.cwd} ({error.strerror}); "
            "have the job's files under the same path on all hosts"
        ) from error
