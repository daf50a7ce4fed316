"""Joins network and machine measurements to the report of a role."""

from __future__ import annotations

import os
import socket

from dynamix_ps.messages import NAN, RoleReport, SystemSample
from dynamix_ps.metrics.network.meter import Traffic

_HOST = socket.gethostname()


def make_report(name: str, role: str, rank: int, traffic: Traffic, system: SystemSample, now_s: float) -> RoleReport:
    """The report of this process.

    Counters of a network namespace that other roles share do not describe this role and are left out.

    Args:
        rank: rank of a worker; -1 for other roles.
        now_s: unix time.
    """
    known = traffic.source != "none"
    return RoleReport(
        name=name,
        role=role,
        rank=rank,
        host=_HOST,
        pid=os.getpid(),
        time_s=traffic.taken_s if known else now_s,
        network_source=traffic.source,
        network_age_s=max(0.0, now_s - traffic.taken_s) if known else NAN,
        flows=() if traffic.shared else traffic.flows,
        system=system,
    )
