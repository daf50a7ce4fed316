"""Joins what workers and servers report of the same TCP connections into one view per worker's link. Pure.

Two endpoints identify a connection: the local end of one side is the remote end of the other. Each side counts the
bytes that the other side acknowledged and the bytes that it received. So both sides report the same bytes, and the view
keeps the difference of the two counts. Only the sender knows retransmissions and busy time. If the reports of the two
sides cover different times, for example because windows are shorter than the servers' interval, the difference means
nothing and is NaN.

Rates cover the time from the newest report before the previous window closed to the newest report now, by each role's
own clock. Clocks of different machines are never compared; an age counts from the arrival of a report.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from dynamix_ps.arbitrator.flow_rates import Ends, FlowRate, flow_rates
from dynamix_ps.messages import NAN, LinkView, RoleReport, ServerView

STALE_S = 10.0  # a role that was silent for longer may return with an earlier clock (chosen by us)
SPARE_ROLES = 8  # kept beyond the servers of the cluster: the scheduler, and processes that were replaced


@dataclass(slots=True)
class _Role:
    last: RoleReport
    received_s: float
    before: RoleReport | None = None
    from_s: float = 0.0  # when `before` was received
    interval_s: float = 0.0  # between its last two reports
    closed_since: int = 0  # windows closed since `last` arrived
    rates: dict[Ends, FlowRate] = field(default_factory=dict)  # between `before` and `last`, by the worker's ends

    def age_s(self, now_s: float) -> float:
        return now_s - self.received_s + self.last.network_age_s

    def silent(self, now_s: float) -> bool:
        """Whether its last report is out of date: it missed three windows and three of its intervals (chosen by us)."""
        patience_s = max(STALE_S, 3 * self.interval_s)
        return self.closed_since >= 3 and now_s - self.received_s > patience_s


class _Connection(NamedTuple):
    """A worker's connection to a server, as each side reports it; None: that side does not report it."""

    mine: FlowRate | None
    server: _Role | None
    theirs: FlowRate | None


class _Total:
    """Totals over one side's connections. A sum is NaN if one part is."""

    __slots__ = ("_most_out", "busiest_rtt_s", "busy", "count", "retransmits_per_s")

    def __init__(self) -> None:
        self.count = 0
        self.retransmits_per_s = 0.0
        self.busy = NAN  # the largest known value, not a sum: a worker reaches its servers at the same time
        self.busiest_rtt_s = NAN  # of the connection that sends most, among those with a known round trip time
        self._most_out = -1.0

    def add(self, rate: FlowRate) -> None:
        out_per_s, _, retransmits_per_s, busy, rtt_s = rate
        self.count += 1
        self.retransmits_per_s += retransmits_per_s
        if not (math.isnan(busy) or busy <= self.busy):
            self.busy = busy
        if not (math.isnan(rtt_s) or out_per_s < self._most_out):
            self.busiest_rtt_s, self._most_out = rtt_s, out_per_s


class LinkReports:
    """The reports of all roles. All `now_s` are seconds of one monotonic clock.

    Reports may arrive late, twice, out of order, and from processes that replaced others.
    """

    def __init__(self, n_workers: int, n_servers: int) -> None:
        self._n_workers = n_workers
        self._n_servers = n_servers
        self._workers: dict[int, _Role] = {}
        self._others: dict[str, _Role] = {}  # servers and schedulers
        self._ends: dict[int, tuple[Ends, ...]] = {}  # of the connections in the worker's last report that had any

    def add(self, report: RoleReport, now_s: float) -> None:
        """Take a report in; a report that is not newer than the last one changes nothing.

        The caller has checked that the rank belongs to the cluster.
        """
        if report.role == "worker":
            _take(self._workers, report.rank, report, now_s)
            if report.flows:  # without flows its source has failed; servers may still see the earlier connections
                flows = self._workers[report.rank].last.flows
                self._ends[report.rank] = tuple((flow.local, flow.remote) for flow in flows)
            return
        _take(self._others, report.name, report, now_s)
        if len(self._others) > self._n_servers + SPARE_ROLES:
            del self._others[min(self._others, key=lambda name: self._others[name].received_s)]

    def close(self, now_s: float) -> tuple[tuple[LinkView, ...], tuple[ServerView, ...]]:
        """Links and servers as a window closes. Rates of the next window count from the newest reports of now."""
        views = self.links(now_s), self.servers(now_s)
        for role in (*self._workers.values(), *self._others.values()):
            role.closed_since += 1
        return views

    def links(self, now_s: float) -> tuple[LinkView, ...]:
        """One view per rank; empty if no role reports a connection."""
        workers = {rank: role for rank, role in self._workers.items() if not role.silent(now_s)}
        others = [role for role in self._others.values() if not role.silent(now_s)]
        servers = [role for role in others if role.last.role == "server"]
        if not any(role.last.flows for role in (*workers.values(), *servers)):
            return ()
        elsewhere = {
            (flow.remote, flow.local) for role in others if role.last.role != "server" for flow in role.last.flows
        }
        return tuple(
            _link_view(rank, workers.get(rank), self._connections(rank, workers.get(rank), servers, elsewhere), now_s)
            for rank in range(self._n_workers)
        )

    def _connections(
        self, rank: int, worker: _Role | None, servers: list[_Role], elsewhere: set[Ends]
    ) -> list[_Connection]:
        """The connections to servers. If all servers report, a connection that none of them sees leads elsewhere."""
        mine = worker.rates if worker is not None else {}
        known = self._ends.get(rank, ())
        found: list[_Connection] = []
        seeing = 0
        for server in servers:
            before = len(found)
            for ends in known:
                if ends in server.rates:
                    found.append(_Connection(mine.get(ends), server, server.rates[ends]))
            seeing += len(found) > before
        if seeing < self._n_servers:
            seen = {ends for ends in known for server in servers if ends in server.rates}
            alone = (rate for ends, rate in mine.items() if ends not in seen and ends not in elsewhere)
            found += (_Connection(rate, None, None) for rate in alone)
        return found

    def servers(self, now_s: float) -> tuple[ServerView, ...]:
        """Servers and schedulers that still report, by name."""
        named = sorted(self._others.items())
        return tuple(_server_view(role, now_s) for _, role in named if not role.silent(now_s))


def _link_view(rank: int, worker: _Role | None, connections: list[_Connection], now_s: float) -> LinkView:
    """One pass over the connections: a decision waits for it, and there may be thousands of workers."""
    mine, theirs = _Total(), _Total()
    push, pull = 0.0, 0.0
    here, there, compared = 0.0, 0.0, 0
    servers: dict[int, tuple[_Role, bool]] = {}
    for own, server, other in connections:
        if own is not None:
            mine.add(own)
        if server is None or other is None:
            assert own is not None
            push, pull = push + own.out_per_s, pull + own.in_per_s
            continue
        theirs.add(other)
        push, pull = push + other.in_per_s, pull + other.out_per_s
        if id(server) not in servers:
            servers[id(server)] = (server, _same_time(worker, server))
        if own is not None and servers[id(server)][1]:
            here, there, compared = here + own.out_per_s, there + other.in_per_s, compared + 1
    ages = [role.age_s(now_s) for role, _ in servers.values()]
    if worker is not None:
        ages.append(worker.age_s(now_s))
    return LinkView(
        rank,
        push_bytes_per_s=push if connections else NAN,
        pull_bytes_per_s=pull if connections else NAN,
        push_retransmits_per_s=mine.retransmits_per_s if mine.count else NAN,
        pull_retransmits_per_s=theirs.retransmits_per_s if theirs.count else NAN,
        push_rtt_s=mine.busiest_rtt_s,
        pull_rtt_s=theirs.busiest_rtt_s,
        push_busy=mine.busy,
        pull_busy=theirs.busy,
        push_difference=_difference(there, here) if compared else NAN,
        source=next((server.last.network_source for server, _ in servers.values()), "none"),
        age_s=max(ages, default=NAN),
    )


def _same_time(one: _Role | None, other: _Role) -> bool:
    """Whether both rates cover about the same time: the overlap is half of the longer one or more (chosen by us)."""
    if one is None:
        return False
    common_s = min(one.received_s, other.received_s) - max(one.from_s, other.from_s)
    return common_s >= 0.5 * max(one.received_s - one.from_s, other.received_s - other.from_s)


def _server_view(role: _Role, now_s: float) -> ServerView:
    rates, last = role.rates.values(), role.last
    return ServerView(
        name=last.name,
        push_bytes_per_s=_sum([rate.in_per_s for rate in rates]),
        pull_bytes_per_s=_sum([rate.out_per_s for rate in rates]),
        unread_bytes=_sum([flow.unread_bytes for flow in last.flows]),
        unsent_bytes=_sum([flow.unsent_bytes for flow in last.flows]),
        system=last.system,
        source=last.network_source,
        age_s=role.age_s(now_s),
    )


def _take(roles: dict[int, _Role] | dict[str, _Role], key: int | str, report: RoleReport, now_s: float) -> None:
    known: dict[int | str, _Role] = roles  # type: ignore[assignment]
    role = known.get(key)
    if role is None:
        known[key] = _Role(report, now_s)
        return
    last = role.last
    newer = report.time_s > last.time_s
    if not newer and now_s - role.received_s <= STALE_S:
        return
    if not newer or (report.host, report.pid) != (last.host, last.pid):
        known[key] = _Role(report, now_s)
        return
    starts = role.closed_since > 0
    before, from_s = (last, role.received_s) if starts or role.before is None else (role.before, role.from_s)
    rates = flow_rates(before, report)  # computed on arrival, so that a decision does not wait for it
    known[key] = _Role(report, now_s, before, from_s, report.time_s - last.time_s, rates=rates)


def _sum(values: Collection[float]) -> float:
    """NaN if one of the values is, or if there are none."""
    return math.fsum(values) if values else NAN


def _difference(received: float, pushed: float) -> float:
    """Relative difference; NaN if either value is."""
    if math.isnan(received) or math.isnan(pushed):
        return NAN
    largest = max(received, pushed)
    return (received - pushed) / largest if largest else 0.0
