"""Traffic between the processes of a host: connections of a probe's snapshots, joined by their ends. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from dynamix_ps.metrics.network.connection import Connection, Reading, SourceName
from dynamix_ps.metrics.network.meter import Traffic, TrafficMeter, rates
from dynamix_ps.metrics.network.probe.protocol import ProbeSnapshot, WatchedProcess

Direction = Literal["push", "pull", ""]

_Ends = tuple[str, str]


@dataclass(frozen=True, slots=True)
class PeerTraffic:
    """All open connections of one process to one peer, as the process sees them. NaN is unknown."""

    run: str  # id of the run; empty: unknown
    host: str  # name of the host, or of the network namespace if it differs from the probe's
    name: str  # for example worker-0; `pid 12` for a process without a role
    peer: str  # name of the other end, or its address if it is no known process of this host
    direction: Direction  # of outgoing bytes: push from worker to server, pull from server to worker, else neither
    connections: int
    out_bytes_per_s: float
    in_bytes_per_s: float
    retransmits_per_s: float  # segments that this end has sent again
    rtt_s: float
    unsent_bytes: float
    source: SourceName
    taken_s: float  # unix time


class HostTraffic:
    """Rates between two successive snapshots."""

    def __init__(self) -> None:
        self._meters: dict[tuple[int, str], TrafficMeter] = {}
        self._before: dict[tuple[int, str], Traffic] = {}

    def update(self, snapshot: ProbeSnapshot) -> tuple[PeerTraffic, ...]:
        """Traffic of every pair of processes since the previous snapshot. In the first snapshot rates are unknown."""
        owners = {process.pid: process for process in snapshot.processes}
        found: dict[tuple[int, str], list[Connection]] = {}
        for connection, peer in _with_peers(snapshot.connections, owners):
            if connection.pid in owners:
                found.setdefault((connection.pid, peer), []).append(connection)
        self._meters = {key: self._meters.get(key, TrafficMeter()) for key in found}
        traffic = {
            key: self._meters[key].update(Reading("ebpf", snapshot.taken_s, tuple(connections)))
            for key, connections in found.items()
        }
        pairs = [
            self._one(owners[pid], peer, traffic[pid, peer], snapshot.host)
            for pid, peer in found
            if traffic[pid, peer].flows
        ]
        self._before = traffic
        return tuple(sorted(pairs, key=lambda pair: (pair.run, not pair.direction, pair.name, pair.peer)))

    def _one(self, owner: WatchedProcess, peer: str, now: Traffic, host: str) -> PeerTraffic:
        rate = rates(self._before.get((owner.pid, peer), now), now)
        name = _shown(owner)
        return PeerTraffic(
            run=owner.run,
            host=owner.netns or host,
            name=name,
            peer=peer,
            direction=direction(name, peer),
            connections=len(now.flows),
            out_bytes_per_s=rate.out_bytes_per_s,
            in_bytes_per_s=rate.in_bytes_per_s,
            retransmits_per_s=rate.retransmits_per_s,
            rtt_s=now.rtt_s,
            unsent_bytes=now.unsent_bytes,
            source=now.source,
            taken_s=now.taken_s,
        )


def direction(name: str, peer: str) -> Direction:
    """Kind of the bytes that `name` sends to `peer`."""
    roles = name.partition("-")[0], peer.partition("-")[0]
    return "push" if roles == ("worker", "server") else "pull" if roles == ("server", "worker") else ""


def _with_peers(
    connections: Iterable[Connection], owners: Mapping[int, WatchedProcess]
) -> Iterable[tuple[Connection, str]]:
    """Each connection with the name of its other end, which has the same two addresses in reverse order."""
    connections = tuple(connections)
    ends: dict[_Ends, list[Connection]] = {}
    for connection in connections:
        ends.setdefault((connection.local, connection.remote), []).append(connection)
    for connection in connections:
        others = ends.get((connection.remote, connection.local), [])
        near = [other for other in others if other.netns == connection.netns]
        # Loopback addresses exist in every namespace, and connect only within one.
        far = [] if _is_loopback(connection.remote) else others
        owner = next((owners[other.pid] for other in (*near, *far) if other.pid in owners), None)
        yield connection, connection.remote if owner is None else _shown(owner)


def _shown(process: WatchedProcess) -> str:
    return process.name or f"pid {process.pid}"


def _is_loopback(end: str) -> bool:
    address = end.rpartition(":")[0].strip("[]")
    return bool(address) and ipaddress.ip_address(address).is_loopback
