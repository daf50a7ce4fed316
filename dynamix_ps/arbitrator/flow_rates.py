"""What a connection carried between two reports of one end, and what an end's connections come to. Pure."""

from __future__ import annotations

import math
from typing import NamedTuple

from dynamix_ps.messages import NAN, Flow, RoleReport

Ends = tuple[str, str]  # local, remote


class FlowRate(NamedTuple):
    """One connection seen from one end, between two reports."""

    out_per_s: float
    in_per_s: float
    retransmits_per_s: float
    busy: float  # 0..1
    rtt_s: float


def flow_rates(before: RoleReport, last: RoleReport) -> dict[Ends, FlowRate]:
    """Of all connections that are open at the end, by the worker's ends: what is local to a server is remote to it.

    One that was not there before counts from 0.
    """
    seconds = last.time_s - before.time_s
    earlier = {(flow.local, flow.remote): flow for flow in before.flows}
    rates = {}
    for flow in last.flows:
        was = earlier.get((flow.local, flow.remote))
        if was is None or flow.bytes_out < was.bytes_out or flow.bytes_in < was.bytes_in:
            was = _NEW  # also another connection between the same endpoints
        rates[(flow.local, flow.remote) if last.role == "worker" else (flow.remote, flow.local)] = FlowRate(
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


class Total:
    """What one side's connections come to. Sums are unknown as soon as one part is."""

    __slots__ = ("_most_out", "busiest_rtt_s", "busy", "count", "retransmits_per_s")

    def __init__(self) -> None:
        self.count = 0
        self.retransmits_per_s = 0.0
        self.busy = NAN  # the largest known: servers are reached at the same time, so busy times are not added up
        self.busiest_rtt_s = NAN  # of the connection with the most bytes out, among those with a known one
        self._most_out = -1.0

    def add(self, rate: FlowRate) -> None:
        out_per_s, _, retransmits_per_s, busy, rtt_s = rate
        self.count += 1
        self.retransmits_per_s += retransmits_per_s
        if not (math.isnan(busy) or busy <= self.busy):
            self.busy = busy
        if not (math.isnan(rtt_s) or out_per_s < self._most_out):
            self.busiest_rtt_s, self._most_out = rtt_s, out_per_s
