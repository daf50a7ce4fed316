"""The traffic of every worker in a whole run, summed over the connections that the roles reported. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from dynamix_ps.messages import NAN, Flow
from dynamix_ps.metrics.network.meter import NAMESPACE
from dynamix_ps.run_record.values import known_sum

Ends = tuple[str, str]  # (local, remote) of a connection


@dataclass(frozen=True, slots=True)
class WorkerTraffic:
    """Totals of one worker; NaN is unknown."""

    pushed_bytes: float = NAN  # payload the servers acknowledged
    pulled_bytes: float = NAN  # payload received from them
    push_retransmits: float = NAN  # segments this worker sent again
    pull_retransmits: float = NAN  # segments the servers sent again to it


@dataclass(slots=True)
class TrafficLedger:
    """Every connection of every role with its highest counters, so that closed connections count too.

    Counters of a whole network namespace (from /proc/net) belong to no single worker and are left out.
    """

    flows: dict[str, dict[Ends, Flow]] = field(default_factory=dict)  # by name of the role
    worker_names: dict[int, str] = field(default_factory=dict)

    def add(self, name: str, rank: int, flows: Iterable[Flow]) -> None:
        """Add one report; `rank` is -1 for a role that is no worker."""
        if rank >= 0:
            self.worker_names[rank] = name
        kept = self.flows.setdefault(name, {})
        for flow in flows:
            if flow.remote == NAMESPACE:
                continue
            before = kept.get((flow.local, flow.remote))
            kept[flow.local, flow.remote] = flow if before is None else _highest(before, flow)

    @property
    def within_one_host(self) -> bool:
        """Whether connections are known, and all of them lead to where they come from: no network is between roles."""
        return any(self.flows.values()) and not self.between_hosts

    @property
    def between_hosts(self) -> bool:
        """Whether a connection is known to lead to another host."""
        return any(_host(local) != _host(remote) for flows in self.flows.values() for local, remote in flows)

    def of_worker(self, rank: int) -> WorkerTraffic:
        """Both directions of one worker, joined with the other side's reports by the ends of each connection.

        Bytes that one end sees acknowledged are bytes that the other received; the larger count is the later one.
        """
        name = self.worker_names.get(rank)
        own = self.flows.get(name, {}) if name is not None else {}
        there = {ends[::-1]: flow for role, flows in self.flows.items() if role != name for ends, flow in flows.items()}
        pairs = [(flow, there.get(ends)) for ends, flow in own.items()]
        return WorkerTraffic(
            pushed_bytes=known_sum(_larger(mine.bytes_out, other.bytes_in if other else NAN) for mine, other in pairs),
            pulled_bytes=known_sum(_larger(mine.bytes_in, other.bytes_out if other else NAN) for mine, other in pairs),
            push_retransmits=known_sum(mine.retransmits for mine, _ in pairs),
            pull_retransmits=known_sum(other.retransmits for _, other in pairs if other),
        )


def _host(address: str) -> str:
    host = address.rpartition(":")[0]
    return "loopback" if host.startswith("127.") or host == "[::1]" else host


def _highest(before: Flow, now: Flow) -> Flow:
    return Flow(
        local=now.local,
        remote=now.remote,
        bytes_out=_larger(before.bytes_out, now.bytes_out),
        bytes_in=_larger(before.bytes_in, now.bytes_in),
        retransmits=_larger(before.retransmits, now.retransmits),
    )


def _larger(before: float, now: float) -> float:
    known = [value for value in (before, now) if not math.isnan(value)]
    return max(known, default=math.nan)
