"""Joins what workers and servers report of the same TCP connections into one view per worker's link. Pure.

A connection is known by its two endpoints: what is local to one side is remote to the other. Each side counts
what the other end acknowledged and what it received itself, so bytes are known twice (their difference is kept),
retransmissions and busy time only where they arise: at the sender. Where the reports of both sides cover different
times, as with windows that are shorter than the servers' interval, the difference would tell nothing and is unknown.

Rates cover the time from the newest report before the previous window closed to the newest one now, of each role
by its own clock. Clocks of different machines are never compared; ages count from when a report arrived.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dynamix_ps.messages import NAN, Flow, LinkView, RoleReport, ServerView

STALE_S = 10.0  # a role that was not heard for so long may come back with an earlier clock (chosen by us)
SPARE_ROLES = 8  # more servers and schedulers than the cluster has, from processes that were replaced

_Ends = tuple[str, str]  # local, remote


class FlowRate(NamedTuple):
    """One connection seen from one end, between two reports."""

    out_per_s: float
    in_per_s: float
    retransmits_per_s: float
    busy: float  # 0..1
    rtt_s: float


@dataclass(slots=True)
class _Role:
    last: RoleReport
    received_s: float
    before: RoleReport | None = None
    from_s: float = 0.0  # when `before` was received
    interval_s: float = 0.0  # between its last two reports
    closed_since: int = 0  # windows that were closed since `last` came
    rates: dict[_Ends, FlowRate] = field(default_factory=dict)  # between `before` and `last`

    def age_s(self, now_s: float) -> float:
        return now_s - self.received_s + self.last.network_age_s

    def silent(self, now_s: float) -> bool:
        """Whether it missed three windows and three of its own intervals (chosen by us): what it said is history."""
        patience_s = max(STALE_S, 3 * self.interval_s)
        return self.closed_since >= 3 and now_s - self.received_s > patience_s


@dataclass(slots=True)
class _Sides:
    """A worker's connections to servers, by the worker's ends: as it sees them, and as the servers do."""

    mine: dict[_Ends, FlowRate] = field(default_factory=dict)
    theirs: dict[_Ends, tuple[_Role, FlowRate]] = field(default_factory=dict)


class Links:
    """The reports of all roles. All `now_s` are seconds of one monotonic clock.

    Reports may come late, twice, out of order, and from processes that replaced others.
    """

    def __init__(self, n_workers: int, n_servers: int) -> None:
        self._n_workers = n_workers
        self._n_servers = n_servers
        self._workers: dict[int, _Role] = {}
        self._others: dict[str, _Role] = {}  # servers and schedulers
        self._owners: dict[_Ends, int] = {}  # rank of a worker by its ends of connections that servers see

    def add(self, report: RoleReport, now_s: float) -> None:
        """Take a report in; one that is not newer than what is known changes nothing.

        Ranks outside of the cluster must not come here.
        """
        if report.role == "worker":
            _take(self._workers, report.rank, report, now_s)
            return
        _take(self._others, report.name, report, now_s)
        if len(self._others) > self._n_servers + SPARE_ROLES:
            del self._others[min(self._others, key=lambda name: self._others[name].received_s)]

    def settle(self) -> None:
        """A window was closed: rates of the next one count from the reports that are the newest now."""
        for role in (*self._workers.values(), *self._others.values()):
            role.closed_since += 1

    def links(self, now_s: float) -> tuple[LinkView, ...]:
        """By rank; empty if no role reported any connection."""
        workers = {rank: role for rank, role in self._workers.items() if not role.silent(now_s)}
        others = [role for role in self._others.values() if not role.silent(now_s)]
        servers = [role for role in others if role.last.role == "server"]
        if not any(role.last.flows for role in (*workers.values(), *servers)):
            return ()
        theirs = {
            (remote, local): (server, rate) for server in servers for (local, remote), rate in server.rates.items()
        }
        self._remember_owners(theirs)
        sides = [_Sides() for _ in range(self._n_workers)]
        for ends, rank in self._owners.items():
            sides[rank].theirs[ends] = theirs[ends]
        elsewhere = {
            (flow.remote, flow.local) for role in others if role.last.role != "server" for flow in role.last.flows
        }
        for rank, worker in workers.items():
            side = sides[rank]
            complete = len({id(server) for server, _ in side.theirs.values()}) == self._n_servers
            for ends, rate in worker.rates.items():
                # where all servers are known, what none of them sees goes somewhere else
                if ends in side.theirs or not (complete or ends in elsewhere):
                    side.mine[ends] = rate
        return tuple(_link_view(rank, workers.get(rank), side, now_s) for rank, side in enumerate(sides))

    def servers(self, now_s: float) -> tuple[ServerView, ...]:
        """Servers and schedulers that still report, by name."""
        named = sorted(self._others.items())
        return tuple(_server_view(role, now_s) for _, role in named if not role.silent(now_s))

    def _remember_owners(self, theirs: Mapping[_Ends, object]) -> None:
        """Whose connections the servers see, also when a worker's own source has failed since it told."""
        for rank, worker in self._workers.items():
            for flow in worker.last.flows:
                self._owners[flow.local, flow.remote] = rank
        self._owners = {ends: self._owners[ends] for ends in theirs if ends in self._owners}


def _link_view(rank: int, worker: _Role | None, sides: _Sides, now_s: float) -> LinkView:
    mine = sides.mine.values()
    theirs = [rate for _, rate in sides.theirs.values()]
    servers = {id(server): server for server, _ in sides.theirs.values()}
    alone = [rate for ends, rate in sides.mine.items() if ends not in sides.theirs]
    comparable = {key for key, server in servers.items() if _same_time(worker, server)}
    both = [
        (rate.out_per_s, sides.theirs[ends][1].in_per_s)  # pushed, received
        for ends, rate in sides.mine.items()
        if ends in sides.theirs and id(sides.theirs[ends][0]) in comparable
    ]
    ages = [role.age_s(now_s) for role in (worker, *servers.values()) if role is not None]
    return LinkView(
        rank=rank,
        push_bytes_per_s=_sum([*(rate.in_per_s for rate in theirs), *(rate.out_per_s for rate in alone)]),
        pull_bytes_per_s=_sum([*(rate.out_per_s for rate in theirs), *(rate.in_per_s for rate in alone)]),
        push_retransmits_per_s=_sum([rate.retransmits_per_s for rate in mine]),
        pull_retransmits_per_s=_sum([rate.retransmits_per_s for rate in theirs]),
        push_rtt_s=_busiest_rtt(mine),
        pull_rtt_s=_busiest_rtt(theirs),
        push_busy=_largest(rate.busy for rate in mine),
        pull_busy=_largest(rate.busy for rate in theirs),
        push_difference=_difference(_sum([received for _, received in both]), _sum([pushed for pushed, _ in both])),
        source=next((server.last.network_source for server in servers.values()), "none"),
        age_s=max(ages, default=NAN),
    )


def _same_time(one: _Role | None, other: _Role) -> bool:
    """Whether the rates of both cover about the same time: half of the longer one's in common (chosen by us)."""
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
    rates = _flow_rates(before, report)  # here and not when a window closes: decisions shall be quick
    known[key] = _Role(report, now_s, before, from_s, report.time_s - last.time_s, rates=rates)


def _flow_rates(before: RoleReport, last: RoleReport) -> dict[_Ends, FlowRate]:
    """Of all connections that are open at the end; one that was not there before counts from 0."""
    seconds = last.time_s - before.time_s
    earlier = {(flow.local, flow.remote): flow for flow in before.flows}
    rates = {}
    for flow in last.flows:
        ends = (flow.local, flow.remote)
        was = earlier.get(ends)
        if was is None or flow.bytes_out < was.bytes_out or flow.bytes_in < was.bytes_in:
            was = _NEW  # also another connection between the same endpoints
        rates[ends] = FlowRate(
            _growth(flow.bytes_out, was.bytes_out) / seconds,
            _growth(flow.bytes_in, was.bytes_in) / seconds,
            _growth(flow.retransmits, was.retransmits) / seconds,
            _at_most_one(_growth(flow.busy_s, was.busy_s) / seconds),
            flow.rtt_s,
        )
    return rates


_NEW = Flow("", "", 0.0, 0.0, 0.0, 0.0)


def _growth(now: float, before: float) -> float:
    """NaN if either is unknown or it fell."""
    return now - before if now >= before else NAN


def _at_most_one(fraction: float) -> float:
    return 1.0 if fraction > 1 else fraction  # unlike min, this keeps NaN


def _sum(values: Collection[float]) -> float:
    """Unknown as soon as one of them is, or if there are none."""
    return math.fsum(values) if values else NAN


def _largest(values: Iterable[float]) -> float:
    """Of those that are known. Servers are reached at the same time, so their busy times are not added up."""
    return max((value for value in values if not math.isnan(value)), default=NAN)


def _busiest_rtt(rates: Iterable[FlowRate]) -> float:
    known = [(rate.out_per_s, rate.rtt_s) for rate in rates if not math.isnan(rate.rtt_s)]
    return max(known, default=(NAN, NAN))[1]


def _difference(received: float, pushed: float) -> float:
    """Relative; NaN where either side is unknown."""
    if math.isnan(received) or math.isnan(pushed):
        return NAN
    largest = max(received, pushed)
    return (received - pushed) / largest if largest else 0.0
