"""The network metrics of one process, from the best source that works. If it fails, the next one takes over."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from dynamix_ps.config import variables
from dynamix_ps.metrics.network.connection import Connection, NetworkSource, Reading, SourceName
from dynamix_ps.metrics.network.meter import Traffic, TrafficMeter
from dynamix_ps.metrics.network.probe.client import ProbeSource
from dynamix_ps.metrics.network.probe.protocol import DEFAULT_SOCKET
from dynamix_ps.metrics.network.probe.start import ProbeRefused, ProbeStarting, check_started

NO_PROBE = "none"  # as variables.PROBE
WHAT = "network metrics"  # in events
IN_WORDS: Mapping[SourceName, str] = {"ebpf": "eBPF", "sockdiag": "sock_diag", "procfs": "/proc/net", "none": "nothing"}

FIRST_RETRY_S = 5.0
LONGEST_RETRY_S = 60.0
TRUSTED_AFTER_S = 60.0  # a source that has worked so long is retried soon after it fails

Makers = Mapping[SourceName, Callable[[], NetworkSource]]


class NetworkMonitor:
    """Traffic of this process, from the eBPF probe of the host, else sock_diag, else /proc/net.

    A reading never raises, and takes at most about half a second, even if the probe hangs. While the probe of the run
    starts, nothing is known. Not thread safe.

    Args:
        wanted: `metrics.network` of the cluster file. No other source replaces one that is named there.
        on_event: called with "degraded" and {"what", "detail"} once per change to a lesser source, and with
            "recovered" when a better source works again.
        keep: selects the connections that count; None: all.
        clock: seconds, for the waiting times between attempts with a better source.
        makers: functions that open the sources, best first.
    """

    def __init__(
        self,
        wanted: str,
        on_event: Callable[[str, dict[str, Any]], None],
        keep: Callable[[Connection], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
        makers: Makers | None = None,
    ) -> None:
        self._makers = [(name, make) for name, make in (makers or _makers(wanted)).items() if wanted in ("auto", name)]
        self._on_event, self._clock = on_event, clock
        self._meter = TrafficMeter(keep=keep)
        self._source: NetworkSource | None = None
        self._level = -1  # index in makers of the source in use; len(makers): none works; -1: not started
        self._since_s = 0.0  # time of its first use
        self._retry_at_s = 0.0
        self._next_delay_s = FIRST_RETRY_S

    def read(self) -> Traffic:
        """The traffic of the connections so far; `source` is "none" if no source works."""
        return self._meter.update(self._reading())

    def close(self) -> None:
        """Close the source. A later `read` opens one again."""
        if self._source is not None:
            self._source.close()
        self._source, self._level = None, -1

    def _reading(self) -> Reading:
        now_s = self._clock()
        retrying = self._level > 0 and now_s >= self._retry_at_s
        problems = []
        for level in range(0 if retrying else max(0, self._level), len(self._makers)):
            name, make = self._makers[level]
            source = self._source if level == self._level else None
            try:
                source = source or make()
                reading = source.read()
            except ProbeStarting:
                return Reading("none", time.time(), ())  # the next reading asks again
            except ProbeRefused:
                continue  # the launcher has given the reason
            except Exception as error:  # a fault in one source must not stop the others
                problems.append(f"{IN_WORDS[name]}: {describe(error)}")
                if source is not None:
                    source.close()
                if level == self._level:
                    self._source = None
            else:
                self._settle(level, source, problems, now_s)
                return reading
        self._settle(len(self._makers), None, problems, now_s)
        return Reading("none", time.time(), ())

    def _settle(self, level: int, source: NetworkSource | None, problems: list[str], now_s: float) -> None:
        """Use this source from now on; report a change, and schedule the next attempt with a better source."""
        before, replaced = self._level, self._source
        self._level, self._source = level, source
        if problems:
            if before >= 0 and level != before and now_s - self._since_s >= TRUSTED_AFTER_S:
                self._next_delay_s = FIRST_RETRY_S
            self._retry_at_s = now_s + self._next_delay_s
            self._next_delay_s = min(2 * self._next_delay_s, LONGEST_RETRY_S)
        if level == before:
            return
        self._since_s = now_s
        if replaced is not None:
            replaced.close()
        if level < before:
            self._on_event("recovered", {"what": WHAT, "detail": f"{IN_WORDS[self._makers[level][0]]} again"})
        elif problems:
            using = IN_WORDS[self._makers[level][0]] if level < len(self._makers) else IN_WORDS["none"]
            self._on_event("degraded", {"what": WHAT, "detail": f"{'; '.join(problems)}; using {using}"})


def describe(error: Exception) -> str:
    """The problem and, if known, what to do."""
    return "; ".join(filter(None, (str(error) or repr(error), getattr(error, "fix", ""))))


def _makers(wanted: str) -> Makers:
    socket = variables.get(variables.PROBE, DEFAULT_SOCKET) or DEFAULT_SOCKET
    without: Makers = {"sockdiag": _sockdiag, "procfs": _procfs}
    if socket == NO_PROBE and wanted == "auto":
        return without  # the launcher has given the reason
    return {"ebpf": lambda: _probe(socket), **without}


def _probe(socket: str) -> NetworkSource:
    check_started(socket)
    return ProbeSource(socket)


def _sockdiag() -> NetworkSource:
    from dynamix_ps.metrics.network.sockdiag import SockDiagSource  # imported late: it needs pyroute2

    return SockDiagSource()


def _procfs() -> NetworkSource:
    from dynamix_ps.metrics.network.procfs import ProcfsSource

    return ProcfsSource()
