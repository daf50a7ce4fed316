"""What Prometheus is told about a run: one table of metrics, and their values from a closed window. Pure.

Names follow Prometheus' customs (base units, `_ratio` for fractions, `_total` for what only grows). An unknown
value is not exported at all: a gap in a chart is true, a zero is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from dynamix_ps.messages import LinkView, ServerView, SystemSample, WindowRecord
from dynamix_ps.policy.base import View
from dynamix_ps.run_record.model import TIME_PARTS
from dynamix_ps.run_record.values import ratio

PREFIX = "dynamix_"

Labels = tuple[tuple[str, str], ...]


class Sample(NamedTuple):
    """One value of one series; `labels` are those beside `run`."""

    name: str
    labels: Labels
    value: float


_WORKER: tuple[tuple[str, str, Callable[[WindowRecord], float]], ...] = (
    ("worker_batch_size", "Planned samples per iteration", lambda r: r.batch_size),
    ("worker_samples_per_second", "Samples per second of training", lambda r: ratio(r.samples, r.duration_s)),
    ("worker_iteration_seconds", "Mean time of an iteration", lambda r: ratio(r.duration_s, r.iterations)),
    ("worker_loss", "Mean loss over the worker's samples", lambda r: r.loss),
    ("worker_accuracy_ratio", "Accuracy on the worker's samples", lambda r: r.accuracy),
    ("worker_gradient_norm_std_ratio", "Standard deviation of |g_i| over its mean", lambda r: r.grad_norm_std),
    ("worker_network_age_seconds", "Age of the network reading when the window closed", lambda r: r.network_age_s),
    ("worker_push_bytes_per_second", "Payload acknowledged by the servers", lambda r: r.push_bytes_per_s),
    ("worker_pull_bytes_per_second", "Payload received from the servers", lambda r: r.pull_bytes_per_s),
    ("worker_retransmits_per_second", "Segments the worker sent again", lambda r: r.retransmits_per_s),
    ("worker_rtt_seconds", "Smoothed round trip of the busiest connection", lambda r: r.rtt_s),
    ("worker_push_busy_ratio", "Time with data on the way to the servers", lambda r: r.push_busy),
)
_LINK: tuple[tuple[str, str, Callable[[LinkView], float]], ...] = (
    ("link_push_bytes_per_second", "Pushed payload as the servers received it", lambda v: v.push_bytes_per_s),
    ("link_pull_bytes_per_second", "Pulled payload as acknowledged to the servers", lambda v: v.pull_bytes_per_s),
    ("link_push_retransmits_per_second", "Segments the worker sent again", lambda v: v.push_retransmits_per_s),
    ("link_pull_retransmits_per_second", "Segments the servers sent again", lambda v: v.pull_retransmits_per_s),
    ("link_push_rtt_seconds", "Round trip as the worker sees it", lambda v: v.push_rtt_s),
    ("link_pull_rtt_seconds", "Round trip as the servers see it", lambda v: v.pull_rtt_s),
    ("link_push_busy_ratio", "Time with data on the way to the servers", lambda v: v.push_busy),
    ("link_pull_busy_ratio", "Time with data on the way to the worker", lambda v: v.pull_busy),
    ("link_push_difference_ratio", "What the two ends disagree about, of the push rate", lambda v: v.push_difference),
    ("link_age_seconds", "Age of the older of the two sides", lambda v: v.age_s),
)
_SERVER: tuple[tuple[str, str, Callable[[ServerView], float]], ...] = (
    ("server_push_bytes_per_second", "Payload received from workers", lambda v: v.push_bytes_per_s),
    ("server_pull_bytes_per_second", "Payload sent to workers", lambda v: v.pull_bytes_per_s),
    ("server_unread_bytes", "Received and waiting to be summed", lambda v: v.unread_bytes),
    ("server_unsent_bytes", "Written and waiting for the network", lambda v: v.unsent_bytes),
    ("server_age_seconds", "Age of the reading", lambda v: v.age_s),
)
_SYSTEM: tuple[tuple[str, str, Callable[[SystemSample | WindowRecord], float]], ...] = (
    ("cpu_used_cores", "CPU seconds per second of the process", lambda s: s.cpu_ratio),
    ("cpu_usable_cores", "Cores the process may use", lambda s: s.cpu_cores),
    ("throttled_ratio", "Time in which a CPU quota held the process back", lambda s: s.throttled),
    ("memory_bytes", "Resident memory", lambda s: s.memory_bytes),
    ("memory_ratio", "Memory in use over the limit that applies", lambda s: s.memory_ratio),
    ("gpu_utilisation_ratio", "GPU in use", lambda s: s.gpu_utilisation),
    ("gpu_memory_ratio", "GPU memory in use", lambda s: s.gpu_memory_ratio),
)
_GLOBAL: tuple[tuple[str, str, Callable[[WindowRecord], float]], ...] = (
    ("loss", "Mean loss over all samples", lambda r: r.global_loss),
    ("accuracy_ratio", "Accuracy on all samples", lambda r: r.global_accuracy),
    ("gradient_noise_variance", "Trace of the covariance of one sample's gradient", lambda r: r.noise_variance),
    ("gradient_noise_signal", "Squared norm of the true gradient", lambda r: r.noise_signal),
    ("epoch", "Passes over the data", lambda r: r.epoch),
)

GAUGES: dict[str, str] = {
    PREFIX + name: text
    for name, text in (
        *((name, text) for name, text, _ in (*_WORKER, *_LINK, *_SERVER, *_GLOBAL)),
        *((f"{role}_{name}", text) for role in ("worker", "server") for name, text, _ in _SYSTEM),
        ("worker_time_ratio", "Share of the window by part: compute, push_pull, wait, input"),
        ("worker_network_source_info", "1 for the source of the network values"),
        ("link_slow", "1 for what holds everybody up at this worker: compute or link"),
        ("server_network_source_info", "1 for the source of the network values"),
        ("window", "Newest closed window"),
        ("plan_version", "Newest plan when the window closed"),
        ("global_batch_size", "Samples of one iteration over all workers, by that plan"),
        ("gradient_noise_scale", "Variance over signal, each smoothed over about ten windows, in samples"),
        ("reward", "Reward of the plan that just ran"),
    )
}
COUNTERS: dict[str, str] = {
    PREFIX + name: text
    for name, text in (
        ("windows", "Closed windows"),
        ("plans", "New plans seen when a window closed"),
        ("samples", "Samples processed"),
        ("gradient_bytes", "Gradient bytes handed to the data plane"),
        ("push_bytes", "Payload acknowledged by the servers: rate of each window times its length"),
        ("pull_bytes", "Payload received from the servers: rate of each window times its length"),
        ("retransmits", "Segments the worker sent again: rate of each window times its length"),
        ("safety_net", "Times proportional shares took over from a learned policy that did worse"),
        ("safety_net_windows", "Windows decided by proportional shares in its place"),
        ("degraded", "Times the arbitrator worked less well than asked for"),
    )
}


def gauges(view: View, reward: float | None, noise_scale: float) -> Iterator[Sample]:
    """The values of a closed window that are known."""
    for name, labels, value in _gauges(view, reward, noise_scale):
        if not math.isnan(value):
            yield Sample(PREFIX + name, labels, float(value))


def growth(record: WindowRecord) -> Iterator[Sample]:
    """By how much a window of one worker moves the counters; what is unknown moves none."""
    labels = (("worker", str(record.rank)),)
    for name, value in (
        ("samples", float(record.samples)),
        ("gradient_bytes", float(record.bytes_pushed)),
        ("push_bytes", record.push_bytes_per_s * record.duration_s),
        ("pull_bytes", record.pull_bytes_per_s * record.duration_s),
        ("retransmits", record.retransmits_per_s * record.duration_s),
    ):
        if value >= 0:
            yield Sample(PREFIX + name, labels, value)


def _gauges(view: View, reward: float | None, noise_scale: float) -> Iterator[tuple[str, Labels, float]]:
    yield "window", (), view.window
    yield "plan_version", (), view.plan.version
    yield "global_batch_size", (), view.plan.global_batch
    yield "reward", (), math.nan if reward is None else reward
    yield "gradient_noise_scale", (), noise_scale
    for record in view.reported[:1]:  # the same on every worker
        yield from ((name, (), value(record)) for name, _, value in _GLOBAL)
    for record in view.reported:
        worker = (("worker", str(record.rank)),)
        yield from ((name, worker, value(record)) for name, _, value in _WORKER)
        yield from ((f"worker_{name}", worker, value(record)) for name, _, value in _SYSTEM)
        for part in TIME_PARTS:
            share = ratio(getattr(record, f"{part}_s"), record.duration_s)
            yield "worker_time_ratio", (*worker, ("part", part)), share
        yield "worker_network_source_info", (*worker, ("source", record.network_source)), 1
    for link in view.links:
        worker = (("worker", str(link.rank)),)
        yield from ((name, worker, value(link)) for name, _, value in _LINK)
        for cause in ("compute", "link"):
            yield "link_slow", (*worker, ("cause", cause)), link.slow == cause
    for view_of in view.servers:
        server = (("server", view_of.name),)
        yield from ((name, server, value(view_of)) for name, _, value in _SERVER)
        yield from ((f"server_{name}", server, value(view_of.system)) for name, _, value in _SYSTEM)
        yield "server_network_source_info", (*server, ("source", view_of.source)), 1
