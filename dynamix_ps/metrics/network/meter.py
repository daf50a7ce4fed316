"""From absolute counters of connections to totals that never fall, and to rates. Pure.

Rules (chosen by us), so that only bytes count that were sent:

- The bytes of a connection before its first reading count if the connection is new: an earlier reading of the source
  did not contain it.
- If the bytes of a connection fall (a reset, a wrap, another connection with the same id), all its counters start from
  0 again. Any other counter that falls was read during an update: it stays until it exceeds its earlier value.
- eBPF and sock_diag use the same ids and the same kernel counters, so counting continues between them. The counters of
  a whole namespace (procfs) are different: after a change from or to them counting restarts, and no rate is known
  across the change.
- A sum over connections is NaN while one of them is NaN: an unknown value never counts as 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from dynamix_ps.messages import Flow
from dynamix_ps.metrics.network.connection import Connection, Reading, SourceName

NAMESPACE = "*"  # both ends of the pseudo connection with the counters of a whole network namespace
FORGET_AFTER_S = 120.0  # after the last reading with a connection; longer than a source keeps closed ones


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals over all connections since the meter began. They never fall; NaN if unknown."""

    bytes_out: float
    bytes_in: float
    retransmits: float
    busy_s: float  # summed over connections: it can grow faster than time

    def map(self, other: Totals, function: Callable[[float, float], float]) -> Totals:
        return Totals(
            function(self.bytes_out, other.bytes_out),
            function(self.bytes_in, other.bytes_in),
            function(self.retransmits, other.retransmits),
            function(self.busy_s, other.busy_s),
        )


@dataclass(frozen=True, slots=True)
class Traffic:
    """State of a meter after one reading."""

    flows: tuple[Flow, ...]  # open connections
    total: Totals
    rtt_s: float  # of the connection that has sent most since the previous reading
    unsent_bytes: float  # now, over all open connections
    unread_bytes: float
    source: SourceName
    taken_s: float
    shared: bool
    restarts: int = 0  # how often counting restarted; no rate is known across a restart


class TrafficSource(Protocol):
    """The part of a NetworkMonitor that reads."""

    def read(self) -> Traffic: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates between two moments; NaN if unknown."""

    out_bytes_per_s: float
    in_bytes_per_s: float
    retransmits_per_s: float
    busy: float  # fraction of time with data in flight; the largest over connections


@dataclass(slots=True)
class _Track:
    """One connection over all readings."""

    shown: Totals  # largest value of each counter of the source
    total: Totals  # never falls
    seen_s: float


_ZERO = Totals(0.0, 0.0, 0.0, 0.0)
_UNKNOWN = Totals(math.nan, math.nan, math.nan, math.nan)


class TrafficMeter:
    """Totals of a process's connections across resets, reconnects and changes of the source."""

    def __init__(self, keep: Callable[[Connection], bool] | None = None) -> None:
        """`keep` selects the connections that count; the counters of a whole namespace always count."""
        self._keep = keep
        self._tracks: dict[str, _Track] = {}
        self._sum = _ZERO
        self._source: SourceName = "none"
        self._of_namespace: bool | None = None  # kind of the last source with a reading
        self._restarts = 0

    def update(self, reading: Reading) -> Traffic:
        """Count one reading. A reading of source "none" means that nothing is known now."""
        is_first = reading.source != self._source
        self._source = reading.source
        self._restart_for_other_counters(reading.source)
        connections = [connection for connection in reading.connections if self._counts(connection)]
        grown = {connection.id: self._count(connection, reading.taken_s, is_first) for connection in connections}
        for growth in grown.values():
            self._sum = self._sum.map(growth, _plus)
        self._tracks = {
            name: track for name, track in self._tracks.items() if reading.taken_s - track.seen_s <= FORGET_AFTER_S
        }
        opened = [connection for connection in connections if not connection.closed]
        return Traffic(
            flows=tuple(self._flow(connection) for connection in opened),
            total=self._known_sum(reading, connections),
            rtt_s=self._busiest_rtt(opened, grown),
            unsent_bytes=_sum(reading, (connection.unsent_bytes for connection in opened)),
            unread_bytes=_sum(reading, (connection.unread_bytes for connection in opened)),
            source=reading.source,
            taken_s=reading.taken_s,
            shared=reading.shared,
            restarts=self._restarts,
        )

    def _counts(self, connection: Connection) -> bool:
        return self._keep is None or connection.remote == NAMESPACE or self._keep(connection)

    def _restart_for_other_counters(self, source: SourceName) -> None:
        if source == "none":
            return
        of_namespace = source == "procfs"
        if self._of_namespace not in (None, of_namespace):
            self._tracks.clear()
            self._restarts += 1
        self._of_namespace = of_namespace

    def _count(self, connection: Connection, taken_s: float, is_first: bool) -> Totals:
        """Growth of its counters since the previous reading; NaN if unknown."""
        shown = _counters(connection)
        track = self._tracks.get(connection.id)
        if track is None:
            self._tracks[connection.id] = _Track(shown, shown, taken_s)
            return shown.map(shown, _growth) if is_first else shown
        if shown.bytes_out < track.shown.bytes_out or shown.bytes_in < track.shown.bytes_in:
            track.shown = _ZERO
        growth = shown.map(track.shown, _growth)
        track.shown = shown.map(track.shown, _larger)
        track.total = track.total.map(growth, _plus).map(shown, _known)
        track.seen_s = taken_s
        return growth

    def _flow(self, connection: Connection) -> Flow:
        total = self._tracks[connection.id].total
        return Flow(
            local=connection.local,
            remote=connection.remote,
            bytes_out=total.bytes_out,
            bytes_in=total.bytes_in,
            retransmits=total.retransmits,
            busy_s=total.busy_s,
            rtt_s=connection.rtt_s,
            unsent_bytes=connection.unsent_bytes,
            unread_bytes=connection.unread_bytes,
        )

    def _known_sum(self, reading: Reading, connections: list[Connection]) -> Totals:
        known = _UNKNOWN if reading.source == "none" else self._sum
        for connection in connections:
            known = known.map(_counters(connection), lambda total, shown: math.nan if math.isnan(shown) else total)
        return known

    def _busiest_rtt(self, opened: list[Connection], grown: dict[str, Totals]) -> float:
        def carried(connection: Connection) -> tuple[float, float]:
            # sent, not received: an end that only receives measures only the first round trip
            return grown[connection.id].bytes_out, self._tracks[connection.id].total.bytes_out

        measured = [connection for connection in opened if not math.isnan(connection.rtt_s)]
        return max(measured, key=carried).rtt_s if measured else math.nan


def rates(before: Traffic, after: Traffic) -> Rates:
    """Means over the time between two results of one meter."""
    duration_s = after.taken_s - before.taken_s
    if duration_s <= 0 or after.restarts != before.restarts:
        return Rates(math.nan, math.nan, math.nan, math.nan)
    return Rates(
        out_bytes_per_s=(after.total.bytes_out - before.total.bytes_out) / duration_s,
        in_bytes_per_s=(after.total.bytes_in - before.total.bytes_in) / duration_s,
        retransmits_per_s=(after.total.retransmits - before.total.retransmits) / duration_s,
        busy=_busy(before, after, duration_s),
    )


def _busy(before: Traffic, after: Traffic, duration_s: float) -> float:
    """Of connections that are open at both moments. Busy time may exceed the duration by a tick; that counts as 1."""
    earlier = {(flow.local, flow.remote): flow.busy_s for flow in before.flows}
    grown = [
        flow.busy_s - earlier[flow.local, flow.remote] for flow in after.flows if (flow.local, flow.remote) in earlier
    ]
    known = [growth for growth in grown if not math.isnan(growth)]
    return min(1.0, max(known) / duration_s) if known else math.nan


def _counters(connection: Connection) -> Totals:
    return Totals(connection.bytes_out, connection.bytes_in, connection.retransmits, connection.busy_s)


def _growth(now: float, before: float) -> float:
    growth = now - before
    return growth if math.isnan(growth) else max(0.0, growth)


def _plus(total: float, more: float) -> float:
    return total if math.isnan(more) else total + more


def _known(value: float, replacement: float) -> float:
    return replacement if math.isnan(value) else value


def _larger(now: float, before: float) -> float:
    return max(_known(now, before), _known(before, now))


def _sum(reading: Reading, values: Iterable[float]) -> float:
    return math.nan if reading.source == "none" else math.fsum(values)
