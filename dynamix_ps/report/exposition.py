"""The metrics of the Prometheus endpoint and their values for a closed window. Pure.

Most of them are fields that name a gauge or a total in messages.py; what is computed from several fields is added
here. Names follow Prometheus' conventions: base units, `_ratio` for fractions, `_total` for counters. An unknown value
is not exported, so that its chart has a gap and no false zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

from dynamix_ps.field_table import FieldTable, Metric, Scope
from dynamix_ps.messages import LINK, SERVER, SYSTEM, WINDOW, WindowRecord
from dynamix_ps.policy.base import View
from dynamix_ps.run_record.model import TIME_PARTS
from dynamix_ps.run_record.values import ratio

PREFIX = "dynamix_"

Labels = tuple[tuple[str, str], ...]


class Sample(NamedTuple):
    """One value of one series; `labels` are those besides `run`."""

    name: str
    labels: Labels
    value: float


class _Gauge(NamedTuple):
    name: str
    help: str
    value: Callable[[Any], float]


def gauge_name(group: str, metric: Metric) -> str:
    """The name of a gauge in Prometheus; `group` is worker, link, server, or empty for the cluster."""
    return PREFIX + (f"{group}_" if group else "") + metric.gauge


def _gauges_of(table: FieldTable, group: str, scope: Scope = "worker") -> tuple[_Gauge, ...]:
    fields = (field for field in table.values() if field.metric.gauge and field.metric.scope == scope)
    return tuple(_Gauge(gauge_name(group, f.metric), f.metric.meaning, attrgetter(f.name)) for f in fields)


_WORKER = (
    *_gauges_of(WINDOW, "worker"),
    _Gauge(
        PREFIX + "worker_samples_per_second",
        "Samples per second of training",
        lambda record: ratio(record.samples, record.duration_s),
    ),
    _Gauge(
        PREFIX + "worker_iteration_seconds",
        "Mean time of an iteration",
        lambda record: ratio(record.duration_s, record.iterations),
    ),
)
_GLOBAL = _gauges_of(WINDOW, "", "cluster")
_LINK = _gauges_of(LINK, "link")
_SERVER = _gauges_of(SERVER, "server")
_SERVER_MACHINE = _gauges_of(SYSTEM, "server")
_TOTALS = tuple(field for field in WINDOW.values() if field.metric.total)


def _is_rate(metric: Metric) -> bool:
    return metric.quantity.unit.endswith("/s")


GAUGES: dict[str, str] = {
    gauge.name: gauge.help for gauge in (*_WORKER, *_GLOBAL, *_LINK, *_SERVER, *_SERVER_MACHINE)
} | {
    PREFIX + name: text
    for name, text in (
        ("worker_time_ratio", "Share of the window by part: compute, push_pull, wait, input"),
        ("worker_network_source_info", "1 for the source of the network values"),
        ("link_slow", "1 for what holds everybody up at this worker: compute or link"),
        ("server_network_source_info", "1 for the source of the network values"),
        ("window", "Newest closed window"),
        ("plan_version", "Newest plan when the window closed"),
        ("global_batch_size", "Samples of one iteration over all workers, by that plan"),
        ("gradient_noise_scale", "Variance over signal, each smoothed over about ten windows, in samples"),
        ("reward", "Reward of the plan that just ran; only while the policy learns"),
        ("members", "Workers that take part in an elastic job, and servers that are there"),
    )
}
COUNTERS: dict[str, str] = {
    PREFIX + metric.total: metric.meaning + (": rate of each window times its length" if _is_rate(metric) else "")
    for metric in (field.metric for field in _TOTALS)
} | {
    PREFIX + name: text
    for name, text in (
        ("windows", "Closed windows"),
        ("plans", "New plans seen when a window closed"),
        ("safety_net", "Times proportional shares took over from a learned policy that did worse"),
        ("safety_net_windows", "Windows decided by proportional shares in its place"),
        ("degraded", "Times the arbitrator worked less well than asked for"),
        ("lost", "Workers and servers that an elastic job has lost"),
    )
}


def gauges(view: View, reward: float | None, noise_scale: float) -> Iterator[Sample]:
    """The values of a closed window that are known."""
    for name, labels, value in _gauges(view, reward, noise_scale):
        if not math.isnan(value):
            yield Sample(name, labels, float(value))


def growth(record: WindowRecord) -> Iterator[Sample]:
    """How much a window of one worker adds to the counters; an unknown value adds nothing."""
    labels = (("worker", str(record.rank)),)
    for field in _TOTALS:
        value = float(getattr(record, field.name)) * (record.duration_s if _is_rate(field.metric) else 1.0)
        if value >= 0:
            yield Sample(PREFIX + field.metric.total, labels, value)


def _gauges(view: View, reward: float | None, noise_scale: float) -> Iterator[tuple[str, Labels, float]]:
    yield PREFIX + "window", (), view.window
    yield PREFIX + "plan_version", (), view.plan.version
    yield PREFIX + "global_batch_size", (), view.plan.global_batch
    yield PREFIX + "reward", (), math.nan if reward is None else reward
    yield PREFIX + "gradient_noise_scale", (), noise_scale
    for record in view.reported[:1]:  # the same on every worker
        yield from _values(_GLOBAL, (), record)
    for record in view.reported:
        worker = (("worker", str(record.rank)),)
        yield from _values(_WORKER, worker, record)
        for part in TIME_PARTS:
            share = ratio(getattr(record, f"{part}_s"), record.duration_s)
            yield PREFIX + "worker_time_ratio", (*worker, ("part", part)), share
        yield PREFIX + "worker_network_source_info", (*worker, ("source", record.network_source)), 1
    for link in view.links:
        worker = (("worker", str(link.rank)),)
        yield from _values(_LINK, worker, link)
        for cause in ("compute", "link"):
            yield PREFIX + "link_slow", (*worker, ("cause", cause)), link.slow == cause
    for role in view.servers:
        server = (("server", role.name),)
        yield from _values(_SERVER, server, role)
        yield from _values(_SERVER_MACHINE, server, role.system)
        yield PREFIX + "server_network_source_info", (*server, ("source", role.source)), 1


def _values(gauges: tuple[_Gauge, ...], labels: Labels, item: object) -> Iterator[tuple[str, Labels, float]]:
    return ((gauge.name, labels, gauge.value(item)) for gauge in gauges)
