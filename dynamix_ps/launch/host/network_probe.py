"""The network probe of a run: the probe of the host, one started for the run, or none, with the reason."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from dynamix_ps import own_process
from dynamix_ps.config import variables
from dynamix_ps.config.role_hosts import HERE
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.host.parent import tied
from dynamix_ps.launch.host.process import how_it_ended
from dynamix_ps.launch.messages.event_log import EventLog
from dynamix_ps.metrics.network.connection import SourceError
from dynamix_ps.metrics.network.monitor import IN_WORDS, NO_PROBE, WHAT, describe
from dynamix_ps.metrics.network.permission import check_permitted
from dynamix_ps.metrics.network.probe.client import ProbeSource
from dynamix_ps.metrics.network.probe.protocol import DEFAULT_SOCKET
from dynamix_ps.metrics.network.probe.start import note_answers, note_refused, note_starting

SOCKET_NAME = "probe.sock"  # in the scratch folder of a run
START_LIMIT_S = 60.0  # beside the start of the roles
WAITED_S = 10.0  # by a run that demands it
_END_GRACE_S = 3.0
_CHECK_EVERY_S = 0.05
_MODULE = "dynamix_ps.metrics.network.probe.process"
_READY = "ready "  # what the probe prints when it answers
_ERROR = "error: "  # how lines of the probe begin that say why it ends


class NetworkProbe:
    """Finds a probe of the host that answers, or starts one in the scratch folder. Roles do not wait for it.

    Without a probe, `events` gets a `degraded` event with the reason, at once or in `check`. A run whose cluster file
    demands eBPF waits until its probe answers.

    Attributes:
        socket: the value of variables.PROBE for all roles; None where no role would ask a probe.
        starting: whether the probe has neither answered nor failed yet.

    Raises:
        EnvironmentNotReady: the cluster file demands eBPF, which is not possible here.
    """

    def __init__(
        self, config: Config, run_id: str, scratch: Path, log_file: Path, events: EventLog, host: str = HERE
    ) -> None:
        self._log_file, self._events = log_file, events
        self._process: subprocess.Popen[bytes] | None = None
        self.starting = False
        wanted = config.metrics.network
        if config.mode == "off" or not config.data_plane.uses_network or wanted not in ("auto", "ebpf"):
            self.socket: str | None = None
            return
        self._demanded = wanted == "ebpf"
        hosts = variables.get(variables.PROBE, NO_PROBE) or NO_PROBE
        if hosts == NO_PROBE:  # as a run within another one inherits it
            hosts = DEFAULT_SOCKET
        problem = _problem(hosts)
        if not problem:
            self.socket = hosts
            return
        self._of_host = f"{problem}; " if os.path.exists(hosts) else ""
        self.socket = str(scratch / SOCKET_NAME)
        try:
            check_permitted()
        except SourceError as error:
            self._give_up(describe(error))
            self.socket = NO_PROBE
            return
        note_starting(self.socket)
        self.starting = True
        self._deadline_s = time.monotonic() + (WAITED_S if self._demanded else START_LIMIT_S)
        self._process = _start(self.socket, {variables.RUN_ID: run_id, variables.HOST: host}, log_file)
        try:
            while self._demanded and self.starting:
                time.sleep(_CHECK_EVERY_S)
                self.check()
        except EnvironmentNotReady:
            self.close()
            raise

    def check(self) -> None:
        """Notice that the started probe answers or has failed. Does not wait."""
        if not self.starting or self._process is None or self.socket is None:
            return
        if self._process.poll() is not None:
            how = how_it_ended(self._process.returncode)
            reason = _last_words(self._log_file) or f"the probe {how} (see {self._log_file})"
        elif any(line.startswith(_READY) for line in _lines(self._log_file)):
            self.starting = False
            note_answers(self.socket)
            return
        elif time.monotonic() < self._deadline_s:
            return
        else:
            reason = f"the probe did not get ready in time (see {self._log_file})"
        self.starting = False
        self._give_up(reason)
        self.close()
        note_refused(self.socket)

    def close(self) -> None:
        """End the started probe. Idempotent."""
        if self._process is not None:
            _end(self._process)
            self._process = None

    def _give_up(self, reason: str) -> None:
        """Raises EnvironmentNotReady if eBPF is demanded."""
        reason = f"{self._of_host}{reason}"
        if self._demanded:
            raise EnvironmentNotReady(f"metrics.network: ebpf is not possible here: {reason}; or set it to auto")
        detail = f"{IN_WORDS['ebpf']}: {reason}; using {IN_WORDS['sockdiag']}"
        self._events.event("degraded", what=WHAT, detail=detail)


def _problem(path: str) -> str:
    """Why no probe answers at this path; empty if one does."""
    source = ProbeSource(path)
    try:
        source.read()
    except SourceError as error:
        return str(error)
    finally:
        source.close()
    return ""


def _start(path: str, owner: Mapping[str, str], log_file: Path) -> subprocess.Popen[bytes]:
    """Start a probe, with the variables of its owner, by which a clean-up of the run finds it."""
    with log_file.open("ab") as log:
        return subprocess.Popen(
            tied(own_process.command(_MODULE, "--private", "--socket", path)),
            env={**os.environ, **owner, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _last_words(log_file: Path) -> str:
    return "; ".join(line.removeprefix(_ERROR) for line in _lines(log_file) if line.startswith(_ERROR))


def _lines(log_file: Path) -> list[str]:
    try:
        return log_file.read_text(errors="replace").splitlines()
    except OSError:  # somebody has removed it
        return []


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
