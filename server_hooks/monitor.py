"""Reports of a server or the scheduler on its connections and its machine, every `metrics.interval_s`.

The monitor is a thread beside BytePS's main loop, which runs in C++ without the GIL. Each report goes into the run
folder (`roles/<name>.jsonl`) and to the arbitrator. A failure of the monitor does not affect the role.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from dynamix_ps.config import variables
from dynamix_ps.config.load import load_config
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import DEGRADED
from dynamix_ps.messages import RoleReport, SystemSample, fields_of
from dynamix_ps.metrics.network.connection import Connection
from dynamix_ps.metrics.network.meter import TrafficSource
from dynamix_ps.metrics.network.monitor import NetworkMonitor
from dynamix_ps.metrics.role_report import make_report
from dynamix_ps.metrics.system import SystemSampler
from dynamix_ps.rpc.access import ArbitratorAccess
from dynamix_ps.rpc.encryption import certificates_for
from dynamix_ps.rpc.observer import RoleObserver
from dynamix_ps.run_record.json_lines import JsonLines
from dynamix_ps.run_record.run_folder import RunFolder
from server_hooks.peer_watch import endpoints_of

_STOP_S = 1.0


class System(Protocol):
    """The part of SystemSampler that is used here."""

    def sample(self) -> SystemSample: ...


class Receiver(Protocol):
    """The part of RoleObserver that is used here."""

    def send(self, report: RoleReport) -> None: ...

    def close(self) -> None: ...


OnEvent = Callable[[str, dict[str, Any]], None]


class RoleMonitor:
    """Reports on one role, from a thread.

    Args:
        name: of the role in reports, for example `server-0`.
        role: server or scheduler.
        interval_s: between two reports.
        open_network: makes the source of network metrics; its argument receives events.
        lines: gets reports and events; may be none.
        observer: gets the reports too; may be none.
    """

    def __init__(
        self,
        name: str,
        role: str,
        interval_s: float,
        open_network: Callable[[OnEvent], TrafficSource],
        system: System,
        lines: JsonLines | None,
        observer: Receiver | None,
    ) -> None:
        self._name, self._role, self._interval_s = name, role, interval_s
        self._open_network = open_network
        self._system = system
        self._lines = lines
        self._observer = observer
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dynamix-monitor", daemon=True)

    def start(self) -> None:
        """Returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Report a last time and end. Waits for it, at most _STOP_S."""
        self._stopping.set()
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        try:
            network = self._open_network(self._event)
            while True:
                last = self._stopping.wait(self._interval_s)
                traffic, system = network.read(), self._system.sample()
                self._report(make_report(self._name, self._role, -1, traffic, system, time.time()))
                if last:
                    break
            network.close()
            if self._observer:
                self._observer.close()
        except Exception as error:  # our fault must not end the role
            self._event("degraded", {"what": "metrics", "detail": f"{self._name} stops reporting: {error!r}"})

    def _report(self, report: RoleReport) -> None:
        if self._observer:
            self._observer.send(report)
        self._write("role", fields_of(report))

    def _event(self, kind: str, fields: dict[str, Any]) -> None:
        lead = DEGRADED if kind == "degraded" else f"{kind}: "
        print(f"{lead}{self._name}: {fields['what']}: {fields.get('detail', '')}", flush=True)
        self._write(kind, fields)

    def _write(self, kind: str, fields: dict[str, Any]) -> None:
        if self._lines:
            self._lines.write({"kind": kind, "time_s": time.time(), **fields})


@contextmanager
def monitored(role: str) -> Iterator[None]:
    """Report while the role runs, if `role_monitor` gives a monitor. Raises what it raises."""
    monitor = role_monitor(role)
    if monitor is not None:
        monitor.start()
    try:
        yield
    finally:
        if monitor is not None:
            monitor.stop()


def role_monitor(role: str) -> RoleMonitor | None:
    """The monitor for this environment; none without a cluster file or with mode off.

    Raises:
        ConfigError: the cluster file is wrong.
        EnvironmentNotReady: the arbitrator is on another machine, and there are no usable certificates.
    """
    config_file = variables.get(variables.CONFIG)
    config = load_config(config_file) if config_file else None
    if config is None or config.mode == "off":
        return None
    name = variables.get(variables.ROLE_NAME) or f"{role}@{socket.gethostname()}:{os.getpid()}"
    run_dir, address = variables.get(variables.RUN_DIR), variables.get(variables.ARBITRATOR)
    wanted = config.metrics.network
    return RoleMonitor(
        name,
        role,
        config.metrics.interval_s,
        lambda on_event: NetworkMonitor(wanted, on_event, keep=data_plane(address)),
        SystemSampler(with_gpu=False),
        JsonLines(RunFolder(Path(run_dir)).role_file(name)) if run_dir else None,
        _observer(address, config),
    )


def data_plane(arbitrator: str | None) -> Callable[[Connection], bool]:
    """A filter that leaves out connections to the arbitrator (host:port), as our reports are no traffic of training."""
    if arbitrator is None:
        return lambda connection: True
    places = endpoints_of(arbitrator)
    return lambda connection: connection.remote not in places


def _observer(address: str | None, config: Config) -> RoleObserver | None:
    run_id, token = variables.get(variables.RUN_ID), variables.get(variables.TOKEN)
    if address is None or run_id is None or token is None:
        return None
    return RoleObserver(ArbitratorAccess(address, run_id, token, config.timeouts, certificates_for(address, config)))
