"""Adds measurements of the kernel and the machine to the records of this worker. Runs in the reporter's thread."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable

from dynamix_ps.config import variables
from dynamix_ps.messages import NAN, RoleReport, SystemSample, WindowRecord
from dynamix_ps.metrics.network.meter import Rates, Traffic, TrafficSource, rates
from dynamix_ps.metrics.role_report import make_report

MACHINE_EVERY_S = 1.0  # a sample takes nearly a millisecond; shorter windows share one (chosen by us)


class Telemetry:
    """Samples network and machine where windows begin and end.

    Args:
        network: connections of the data plane.
        sample: takes a sample of the machine, over the time since the last sample.
    """

    def __init__(self, rank: int, network: TrafficSource, sample: Callable[[], SystemSample]) -> None:
        self.name = variables.get(variables.ROLE_NAME) or f"worker-{rank}"
        self._rank = rank
        self._network = network
        self._sample = sample
        self._before: Traffic | None = None
        self._system, self._sampled_s = SystemSample(), -math.inf

    def begin_window(self) -> None:
        """A window begins here. What the network did so far is in none: there was a pause, or the plan has changed."""
        self._before = self._network.read()

    def complete(self, record: WindowRecord) -> tuple[WindowRecord, RoleReport]:
        """The record with these measurements, and a report of this role. The next window begins."""
        system, traffic = self._machine(), self._network.read()
        rate = rates(self._before, traffic) if self._before and not traffic.shared else _UNKNOWN
        self._before = traffic
        report = make_report(self.name, "worker", self._rank, traffic, system, time.time())
        record = dataclasses.replace(
            record,
            **{field: getattr(system, field) for field in _SYSTEM},
            network_source=report.network_source,
            network_age_s=report.network_age_s,
            push_bytes_per_s=rate.out_bytes_per_s,
            pull_bytes_per_s=rate.in_bytes_per_s,
            retransmits_per_s=rate.retransmits_per_s,
            push_busy=rate.busy,
            rtt_s=NAN if traffic.shared else traffic.rtt_s,
        )
        return record, report

    def close(self) -> None:
        self._network.close()

    def _machine(self) -> SystemSample:
        now_s = time.monotonic()
        if now_s - self._sampled_s >= MACHINE_EVERY_S:
            self._system, self._sampled_s = self._sample(), now_s
        return self._system


_UNKNOWN = Rates(NAN, NAN, NAN, NAN)
_SYSTEM = tuple(field.name for field in dataclasses.fields(SystemSample) if field.name != "cpu_ratio")  # see Stopwatch
