"""The values that worker hooks, arbitrator and policies exchange, with the description of their fields.

To add a metric of a window, describe it in `WindowRecord`, with the default NaN, and measure it. It then goes to the
arbitrator, to the run folder, to TensorBoard and, if it has a `gauge`, to Prometheus. What machine and kernel measure
is described in `SystemSample` and `NetworkSample`, and listed in `WindowRecord` too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

from dynamix_ps.field_table import (
    BYTES,
    BYTES_PER_S,
    CORES,
    DIFFERENCE,
    FRACTION,
    ITERATIONS,
    LOSS,
    NOISE,
    NUMBER,
    PASSES,
    RATIO,
    RELATIVE_SPREAD,
    SAMPLES,
    SECONDS,
    SEGMENTS,
    SEGMENTS_PER_S,
    SQUARED_NORM,
    UNITS,
    WHOLE_BYTES,
    WORD,
    YES_OR_NO,
    Metric,
    table_of,
)

NAN = math.nan


def fields_of(item: Any) -> dict[str, Any]:
    """The fields of a slotted dataclass by name, with their values unchanged."""
    return {name: getattr(item, name) for name in item.__slots__}


LARGEST_VERSION = (1 << 24) - 1  # of a plan: the vote for one has 24 bits (worker_hooks/planning/plan_switch.py)


@dataclass(frozen=True, slots=True)
class Plan:
    """One batch size per worker (index = rank), in force from one iteration on all workers."""

    version: int
    batch_sizes: tuple[int, ...]

    @property
    def global_batch(self) -> int:
        return sum(self.batch_sizes)


@dataclass(frozen=True, slots=True)
class SystemSample:
    """The machine as one process sees it, over the time since its last sample. NaN is unknown."""

    cpu_ratio: Annotated[
        float, Metric("CPU seconds per second of the process", CORES, "machine", gauge="cpu_used_cores")
    ] = NAN
    cpu_cores: Annotated[float, Metric("Cores the process may use", CORES, "machine", gauge="cpu_usable_cores")] = NAN
    throttled: Annotated[
        float, Metric("Time in which a CPU quota held the process back", FRACTION, "machine", gauge="throttled_ratio")
    ] = NAN
    memory_bytes: Annotated[float, Metric("Resident memory", BYTES, "machine", gauge="memory_bytes")] = NAN
    memory_ratio: Annotated[
        float, Metric("Memory in use over the limit that applies", RATIO, "machine", gauge="memory_ratio")
    ] = NAN
    gpu_utilisation: Annotated[float, Metric("GPU in use", FRACTION, "machine", gauge="gpu_utilisation_ratio")] = NAN
    gpu_memory_ratio: Annotated[float, Metric("GPU memory in use", FRACTION, "machine", gauge="gpu_memory_ratio")] = NAN


@dataclass(frozen=True, slots=True)
class NetworkSample:
    """A worker's connections of the data plane as its kernel counts them, over one window. NaN is unknown."""

    network_source: Annotated[
        str, Metric("Source of the network values: ebpf, sockdiag, procfs or none", WORD, "kernel")
    ] = "none"
    network_age_s: Annotated[
        float,
        Metric("Age of the network reading when the window closed", SECONDS, "kernel", gauge="network_age_seconds"),
    ] = NAN
    push_bytes_per_s: Annotated[
        float,
        Metric(
            "Payload acknowledged by the servers",
            BYTES_PER_S,
            "kernel",
            gauge="push_bytes_per_second",
            total="push_bytes",
        ),
    ] = NAN
    pull_bytes_per_s: Annotated[
        float,
        Metric(
            "Payload received from the servers",
            BYTES_PER_S,
            "kernel",
            gauge="pull_bytes_per_second",
            total="pull_bytes",
        ),
    ] = NAN
    retransmits_per_s: Annotated[
        float,
        Metric(
            "Segments the worker sent again",
            SEGMENTS_PER_S,
            "kernel",
            gauge="retransmits_per_second",
            total="retransmits",
        ),
    ] = NAN
    rtt_s: Annotated[
        float, Metric("Smoothed round trip of the busiest connection", SECONDS, "kernel", gauge="rtt_seconds")
    ] = NAN
    push_busy: Annotated[
        float, Metric("Time with data on the way to the servers", FRACTION, "kernel", gauge="push_busy_ratio")
    ] = NAN


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRecord:
    """What one worker saw over one window of iterations. Unknown values are NaN, never 0.

    compute_s, push_pull_s, wait_s, input_s and outside_s are totals over the window; together they make duration_s up
    to bookkeeping. The worker that arrives last at the gradient sum waits only for the network, so push_pull_s is the
    smallest blocked time among the workers, and wait_s is what this worker was blocked beyond it, by other workers.
    """

    rank: Annotated[int, Metric("Rank of the worker", NUMBER, chart=False)]
    window: Annotated[int, Metric("Number of the window, from 0", NUMBER, scope="cluster", chart=False)]
    first_iteration: Annotated[int, Metric("Its first iteration", NUMBER, scope="cluster", chart=False)]
    iterations: Annotated[int, Metric("Iterations of the window", ITERATIONS, scope="cluster", chart=False)]
    plan_version: Annotated[int, Metric("Version of the plan in force", NUMBER, "plan")]
    batch_size: Annotated[
        int, Metric("Planned samples per iteration, or tokens (`batch.unit`)", SAMPLES, "plan", gauge="batch_size")
    ]
    samples: Annotated[int, Metric("Samples processed, or tokens (`batch.unit`)", SAMPLES, total="samples")]
    duration_s: Annotated[float, Metric("Length of the window, without pauses", SECONDS)]
    compute_s: Annotated[float, Metric("Time computing", SECONDS)]
    push_pull_s: Annotated[float, Metric("Time blocked in the gradient sum by the network", SECONDS)] = NAN
    wait_s: Annotated[float, Metric("Time blocked in the gradient sum by other workers", SECONDS)] = NAN
    input_s: Annotated[float, Metric("Time waiting for the batch", SECONDS)]
    outside_s: Annotated[
        float,
        Metric("Time between a step and the next batch that does not recur: evaluation, logging, saving", SECONDS),
    ] = NAN
    loss: Annotated[float, Metric("Mean loss over the worker's samples", LOSS, gauge="loss")] = NAN
    accuracy: Annotated[float, Metric("Accuracy on the worker's samples", FRACTION, gauge="accuracy_ratio")] = NAN
    global_samples: Annotated[int, Metric("Samples, or tokens, of all workers", SAMPLES, scope="cluster")]
    global_loss: Annotated[float, Metric("Mean loss over all samples", LOSS, scope="cluster", gauge="loss")] = NAN
    global_accuracy: Annotated[
        float, Metric("Accuracy on all samples", FRACTION, scope="cluster", gauge="accuracy_ratio")
    ] = NAN
    grad_sq_local: Annotated[
        float, Metric("Mean of |g_i|^2, the squared norm of the worker's mean gradient", SQUARED_NORM)
    ] = NAN
    grad_sq_global: Annotated[
        float, Metric("Mean of |g|^2, the squared norm of the weighted global gradient", SQUARED_NORM, scope="cluster")
    ] = NAN
    grad_norm_std: Annotated[
        float, Metric("Standard deviation of |g_i| over its mean", RELATIVE_SPREAD, gauge="gradient_norm_std_ratio")
    ] = NAN
    bytes_pushed: Annotated[int, Metric("Gradient bytes handed to the data plane", WHOLE_BYTES, total="gradient_bytes")]
    accuracy_std: Annotated[float, Metric("Standard deviation of the worker's batch accuracy", FRACTION)] = NAN
    noise_variance: Annotated[
        float,
        Metric(
            "Trace of the covariance of one sample's gradient", NOISE, scope="cluster", gauge="gradient_noise_variance"
        ),
    ] = NAN  # estimated as in metrics/noise.py
    noise_signal: Annotated[
        float, Metric("Squared norm of the true gradient", NOISE, scope="cluster", gauge="gradient_noise_signal")
    ] = NAN
    epoch: Annotated[float, Metric("Passes over the data", PASSES, scope="cluster", gauge="epoch")] = NAN
    trained_ratio: Annotated[
        float, Metric("Complete part of the training the script asked for", FRACTION, scope="cluster")
    ] = NAN
    lr_ratio: Annotated[
        float, Metric("The script's own learning rate over the largest it had", FRACTION, scope="cluster")
    ] = NAN
    lr_factor: Annotated[
        float,
        Metric(
            "Factor on the script's learning rate in the last step: `lr_rule` times what the guard leaves",
            RATIO,
            scope="cluster",
            gauge="learning_rate_factor",
        ),
    ] = NAN
    lr_guard: Annotated[
        float,
        Metric(
            "What the guard against a rising loss leaves: halved at every rollback",
            FRACTION,
            scope="cluster",
            gauge="learning_rate_guard_ratio",
        ),
    ] = NAN
    lr_batch: Annotated[
        float, Metric("Global batch that the script's learning rate is for", SAMPLES, scope="cluster", chart=False)
    ] = NAN  # unknown: the sum of the first sizes
    gc_s: Annotated[float, Metric("Garbage collection, a part of the times above", SECONDS, gauge="gc_seconds")] = NAN
    summed_bytes_per_s: Annotated[
        float,
        Metric(
            "Gradient bytes of the worker that were summed, through shared memory or a network",
            BYTES_PER_S,
            gauge="summed_bytes_per_second",
        ),
    ] = NAN
    units: Annotated[
        float,
        Metric("Units, such as tokens, that the script gave as weights of its losses", UNITS, total="units"),
    ] = NAN
    global_units: Annotated[float, Metric("The same over all workers", UNITS, scope="cluster")] = NAN
    at_once: Annotated[
        float,
        Metric("Samples, or tokens (`batch.unit`), that fit into memory at once", SAMPLES, gauge="samples_at_once"),
    ] = NAN  # unknown: no ceiling is known
    data_size: Annotated[
        float,
        Metric("Samples, or tokens (`batch.unit`), of a pass over the data", SAMPLES, scope="cluster", chart=False),
    ] = NAN  # unknown: of a stream
    # as SystemSample describes them; cpu_ratio is the hook's own, without pauses
    cpu_ratio: float = NAN
    cpu_cores: float = NAN
    throttled: float = NAN
    memory_bytes: float = NAN
    memory_ratio: float = NAN
    gpu_utilisation: float = NAN
    gpu_memory_ratio: float = NAN
    # as NetworkSample describes them
    network_source: str = "none"
    network_age_s: float = NAN
    push_bytes_per_s: float = NAN
    pull_bytes_per_s: float = NAN
    retransmits_per_s: float = NAN
    rtt_s: float = NAN
    push_busy: float = NAN
    flagged: Annotated[bool, Metric("Contains a stall or a rollback: not to be learned from", YES_OR_NO)] = False


@dataclass(frozen=True, slots=True)
class Flow:
    """One TCP connection seen from one end. Counters never fall; NaN where the source cannot tell."""

    local: str  # address:port, IPv6 in brackets
    remote: str
    bytes_out: Annotated[float, Metric("Payload the other end has acknowledged", BYTES, "kernel")] = NAN
    bytes_in: Annotated[float, Metric("Payload received", BYTES, "kernel")] = NAN
    retransmits: Annotated[float, Metric("Segments sent again", SEGMENTS, "kernel")] = NAN
    busy_s: Annotated[float, Metric("Time in which sent data was not yet acknowledged", SECONDS, "kernel")] = NAN
    rtt_s: Annotated[float, Metric("Smoothed round trip", SECONDS, "kernel")] = NAN
    unsent_bytes: Annotated[float, Metric("Written, not yet acknowledged", BYTES, "kernel")] = NAN
    unread_bytes: Annotated[float, Metric("Received, not yet read", BYTES, "kernel")] = NAN


@dataclass(frozen=True, slots=True)
class RoleReport:
    """What a role reports of its connections and its machine, every second or at the end of a window."""

    name: str  # worker-0, server-1, scheduler
    role: str  # worker, server, scheduler
    rank: int  # of a worker; -1 for others
    host: str
    pid: int
    time_s: float  # Unix time of the reading
    network_source: str
    network_age_s: float
    flows: tuple[Flow, ...]
    system: SystemSample


@dataclass(frozen=True, slots=True)
class LinkView:
    """One worker's link to all servers, joined from the reports of both sides. NaN is unknown."""

    rank: Annotated[int, Metric("Rank of the worker", NUMBER, "both sides", chart=False)]
    push_bytes_per_s: Annotated[
        float,
        Metric("Pushed payload as the servers received it", BYTES_PER_S, "both sides", gauge="push_bytes_per_second"),
    ] = NAN
    pull_bytes_per_s: Annotated[
        float,
        Metric(
            "Pulled payload as acknowledged to the servers", BYTES_PER_S, "both sides", gauge="pull_bytes_per_second"
        ),
    ] = NAN
    push_retransmits_per_s: Annotated[
        float,
        Metric("Segments the worker sent again", SEGMENTS_PER_S, "both sides", gauge="push_retransmits_per_second"),
    ] = NAN
    pull_retransmits_per_s: Annotated[
        float,
        Metric("Segments the servers sent again", SEGMENTS_PER_S, "both sides", gauge="pull_retransmits_per_second"),
    ] = NAN
    push_rtt_s: Annotated[
        float, Metric("Round trip as the worker sees it", SECONDS, "both sides", gauge="push_rtt_seconds")
    ] = NAN
    pull_rtt_s: Annotated[
        float, Metric("Round trip as the servers see it", SECONDS, "both sides", gauge="pull_rtt_seconds")
    ] = NAN
    push_busy: Annotated[
        float, Metric("Time with data on the way to the servers", FRACTION, "both sides", gauge="push_busy_ratio")
    ] = NAN
    pull_busy: Annotated[
        float, Metric("Time with data on the way to the worker", FRACTION, "both sides", gauge="pull_busy_ratio")
    ] = NAN
    push_difference: Annotated[
        float,
        Metric(
            "Push rate the servers see minus the worker's, over the larger",
            DIFFERENCE,
            "both sides",
            gauge="push_difference_ratio",
        ),
    ] = NAN
    source: Annotated[str, Metric("Source of the servers' values", WORD, "both sides")] = "none"
    age_s: Annotated[float, Metric("Age of the older side", SECONDS, "both sides", gauge="age_seconds")] = NAN
    slow: Annotated[
        str, Metric("What all workers wait for at this worker: compute, link, or nothing", WORD, "both sides")
    ] = ""


@dataclass(frozen=True, slots=True)
class ServerView:
    """A server or the scheduler; rates since the window before was closed. NaN is unknown."""

    name: Annotated[str, Metric("Name of the role", WORD, "servers")]
    push_bytes_per_s: Annotated[
        float, Metric("Payload received from workers", BYTES_PER_S, "servers", gauge="push_bytes_per_second")
    ] = NAN
    pull_bytes_per_s: Annotated[
        float, Metric("Payload sent to workers", BYTES_PER_S, "servers", gauge="pull_bytes_per_second")
    ] = NAN
    unread_bytes: Annotated[
        float, Metric("Received and waiting to be summed", BYTES, "servers", gauge="unread_bytes")
    ] = NAN  # large: the server is behind
    unsent_bytes: Annotated[
        float, Metric("Written and waiting for the network", BYTES, "servers", gauge="unsent_bytes")
    ] = NAN  # large: the links are behind
    system: SystemSample = SystemSample()
    source: Annotated[str, Metric("Source of the network values", WORD, "servers")] = "none"
    age_s: Annotated[float, Metric("Age of the reading", SECONDS, "servers", gauge="age_seconds")] = NAN


SYSTEM = table_of(SystemSample)
NETWORK = table_of(NetworkSample)
WINDOW = table_of(WindowRecord, SYSTEM, NETWORK)
FLOW = table_of(Flow)
LINK = table_of(LinkView)
SERVER = table_of(ServerView)


@dataclass(frozen=True, slots=True)
class Registration:
    """Who a worker is. `incarnation` is new for every process, so a replaced process cannot speak for its successor."""

    rank: int
    incarnation: str
    host: str
    pid: int
    plan: Plan  # the plan it holds now (version 0, or the one of a checkpoint)
    work: str = ""  # digest of what it computes, and on what; empty: it does not tell


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """What the arbitrator last heard of a worker."""

    rank: int
    iteration: int
    silent_s: float
    alive: bool
