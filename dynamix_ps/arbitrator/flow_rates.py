"""Rates of a connection between two reports of one end. Pure."""

from __future__ import annotations

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
    """Rates of all connections that `last` contains, by the worker's ends: a server's local end is the remote one.

    A connection that `before` does not contain counts from 0.
    """
    seconds = last.time_s - before.time_s
    earlier = {(flow.local, flow.remote): flow for flow in before.flows}
    rates = {}
    for flow in last.flows:
        was = earlier.get((flow.local, flow.remote))
        if was is None or flow.bytes_out < was.bytes_out or flow.bytes_in < was.bytes_in:
            was = _NEW  # or it is another connection between the same endpoints
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
    """NaN if either value is unknown or the counter fell."""
    return now - before if now >= before else NAN


def _at_most_one(fraction: float) -> float:
    return 1.0 if fraction > 1 else fraction  # unlike min, this keeps NaN
