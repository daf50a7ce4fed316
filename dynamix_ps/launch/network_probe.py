"""The network probe of a run: the host's, one started for the run, or none, with the reason."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from dynamix_ps.config import variables
from dynamix_ps.config.role_hosts import HERE
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.process import tie_to_parent
from dynamix_ps.launch.verdict import how_it_ended
from dynamix_ps.metrics.network.connection import SourceError
from dynamix_ps.metrics.network.monitor import IN_WORDS, NO_PROBE, WHAT
from dynamix_ps.metrics.network.probe_client import ProbeSource
from dynamix_ps.metrics.network.probe_protocol import DEFAULT_SOCKET

SOCKET_NAME = "probe.sock"  # in the scratch folder of a run
START_LIMIT_S = 10.0
_END_GRACE_S = 3.0
_CHECK_EVERY_S = 0.05
_ERROR = "error: "  # how lines of the probe begin that say why it ends


class Events(Protocol):
    """The part of a Recorder that is used here."""

    def event(self, kind: str, **fields: Any) -> None: ...


@contextmanager
def network_probe(
    config: Config, run_id: str, scratch: Path, log_file: Path, events: Events, host: str = HERE
) -> Iterator[str | None]:
    """Yields the value of variables.PROBE for all roles, none where nothing would ask a probe; ends what it began.

    It uses a probe of the host that answers. Otherwise it starts one in the scratch folder. Where that is not
    permitted, the run has no probe, and `events` gets a `degraded` event.

    Raises:
        EnvironmentNotReady: eBPF is demanded, and is not possible.
    """
    wanted = config.metrics.network
    if config.mode == "off" or not config.data_plane.uses_network or wanted not in ("auto", "ebpf"):
        yield None
        return
    hosts = variables.get(variables.PROBE, NO_PROBE) or NO_PROBE
    if hosts == NO_PROBE:  # as a run within another one inherits it
        hosts = DEFAULT_SOCKET
    problem = _problem(hosts)
    if not problem:
        yield hosts
        return
    ours = str(scratch / SOCKET_NAME)
    process = _start(ours, {variables.RUN_ID: run_id, variables.HOST: host}, log_file)
    try:
        reason = _wait_ready(process, ours, log_file)
        if not reason:
            yield ours
            return
    finally:
        _end(process)
    if os.path.exists(hosts):
        reason = f"{problem}; {reason}"
    if wanted == "ebpf":
        raise EnvironmentNotReady(f"metrics.network: ebpf is not possible here: {reason}; or set it to auto")
    events.event("degraded", what=WHAT, detail=f"{IN_WORDS['ebpf']}: {reason}; using {IN_WORDS['sockdiag']}")
    yield NO_PROBE


def _problem(path: str) -> str:
    """Why no probe answers at this path; empty when one does."""
    source = ProbeSource(path)
    try:
        source.read()
    except SourceError as error:
        return str(error)
    finally:
        source.close()
    return ""


def _start(path: str, owner: Mapping[str, str], log_file: Path) -> subprocess.Popen[bytes]:
    """Start a probe. It has the variables of its owner, so that a clean-up of the run finds it."""
    parent = os.getpid()
    with log_file.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "dynamix_ps.metrics.network.probe", "--private", "--socket", path],
            env={**os.environ, **owner, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: tie_to_parent(parent),  # noqa: PLW1509  safe: this process has one thread
        )


def _wait_ready(process: subprocess.Popen[bytes], path: str, log_file: Path) -> str:
    """Wait until the probe answers. Returns why it does not; empty: it does."""
    deadline_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline_s:
        try:
            process.wait(_CHECK_EVERY_S)
        except subprocess.TimeoutExpired:
            if os.path.exists(path) and not _problem(path):
                return ""
        else:
            return _last_words(log_file) or f"the probe {how_it_ended(process.returncode)} (see {log_file})"
    return f"the probe did not get ready within {START_LIMIT_S:g} s (see {log_file})"


def _last_words(log_file: Path) -> str:
    lines = log_file.read_text(errors="replace").splitlines()
    return "; ".join(line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR))


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
