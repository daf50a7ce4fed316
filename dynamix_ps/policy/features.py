"""The state of DYNAMIX as a table: one line per number that a learned policy sees, in the order it sees them.

Per worker (LOCAL) and common to all (SHARED). The groups network, system, training, global are those of DYNAMIX
(arXiv 2510.08522, IV-B); its exact list and scales are not published. `paper` marks quantities it names; every
formula and every other line is chosen by us. An unknown value is NaN here, and 0 with a mask of 0 after
normalisation (ppo/normalise.py). `python -m dynamix_ps.policy.features` prints the table of docs/state.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from dynamix_ps.messages import NAN, LinkView, ServerView, WindowRecord

_GIB = 2.0**30

Source = Literal["kernel", "both sides", "machine", "hook", "servers", "plan"]


@dataclass(frozen=True, slots=True)
class WorkerWindow:
    """What is known of one worker at the end of a window."""

    record: WindowRecord
    link: LinkView
    accuracy: float  # its own, or everybody's where its own is unknown
    accuracy_before: float  # in the window seen before
    loss_before: float
    reference_s: float  # iteration time that counts as 1
    global_batch: int  # as planned
    workers: int
    mean_speed: float  # samples per second of computing, mean of the workers


@dataclass(frozen=True, slots=True)
class ClusterWindow:
    """What is known of the whole cluster at the end of a window."""

    record: WindowRecord  # of any worker: the global values are the same on all
    accuracy_before: float
    loss_before: float
    noise_scale: float  # samples, smoothed
    global_batch: int
    largest_batch: int  # largest B that the bounds allow
    workers: int
    servers: tuple[ServerView, ...]


_W = TypeVar("_W")


@dataclass(frozen=True, slots=True)
class Feature(Generic[_W]):
    name: str
    unit: str
    low: float  # values are cut off at low and high
    high: float
    source: Source
    paper: bool  # named by the paper; else ours
    meaning: str
    value: Callable[[_W], float]


def _ratio(value: float, unit: float) -> float:
    return value / unit if unit > 0 else NAN


def _log(value: float) -> float:
    return math.log1p(value) if value >= 0 else NAN


def _log2(value: float) -> float:
    return math.log2(value) if value > 0 else NAN


def _fall(before: float, now: float) -> float:
    return (before - now) / max(abs(before), 1e-9)


def speed(record: WindowRecord) -> float:
    """Samples per second of computing; NaN for a worker that had none."""
    return _ratio(record.samples, record.compute_s) if record.samples else NAN


def gradient_variance(record: WindowRecord) -> float:
    """The part of |g_i|^2 that is noise, 1 - |g|^2 / |g_i|^2, at least 0."""
    return 1.0 - min(_ratio(record.grad_sq_global, record.grad_sq_local), 1.0)


def iteration_time(window: WorkerWindow) -> float:
    """Seconds per iteration in units of the reference."""
    return _ratio(window.record.duration_s / window.record.iterations, window.reference_s)


def _share(part: Callable[[WindowRecord], float]) -> Callable[[WorkerWindow], float]:
    return lambda w: _ratio(part(w.record), w.record.duration_s)


def _largest(values: list[float]) -> float:
    return max((value for value in values if not math.isnan(value)), default=NAN)


LOCAL: tuple[Feature[WorkerWindow], ...] = (
    Feature("push_throughput", "log(bytes/s)", 0, 30, "kernel", True, "log1p of payload the servers acknowledged",
            lambda w: _log(w.record.push_bytes_per_s)),
    Feature("pull_throughput", "log(bytes/s)", 0, 30, "kernel", True, "log1p of payload received from the servers",
            lambda w: _log(w.record.pull_bytes_per_s)),
    Feature("push_retransmits", "log(1/s)", 0, 20, "kernel", True, "log1p of segments this worker sent again",
            lambda w: _log(w.record.retransmits_per_s)),
    Feature("pull_retransmits", "log(1/s)", 0, 20, "both sides", True, "log1p of segments servers sent it again",
            lambda w: _log(w.link.pull_retransmits_per_s)),
    Feature("rtt", "log(us)", 0, 20, "kernel", False, "log1p of the smoothed round trip to the busiest server",
            lambda w: _log(1e6 * w.record.rtt_s)),
    Feature("push_busy", "1", 0, 1, "kernel", False, "part of the time with data on the way to the servers",
            lambda w: w.record.push_busy),
    Feature("pull_busy", "1", 0, 1, "both sides", False, "part of the time with data on the way back",
            lambda w: w.link.pull_busy),
    Feature("sides_differ", "1", -1, 1, "both sides", False, "push rate the servers see minus the worker's, relative",
            lambda w: w.link.push_difference),
    Feature("cpu_ratio", "1", 0, 1024, "machine", True, "CPU seconds per second of the training process",
            lambda w: w.record.cpu_ratio),
    Feature("cpu_use", "1", 0, 2, "machine", False, "the same over the cores it may use",
            lambda w: _ratio(w.record.cpu_ratio, w.record.cpu_cores)),
    Feature("throttled", "1", 0, 1, "machine", False, "part of the time a CPU quota held it back",
            lambda w: w.record.throttled),
    Feature("memory", "log(GiB)", 0, 12, "machine", True, "log1p of the resident set",
            lambda w: _log(w.record.memory_bytes / _GIB)),
    Feature("memory_use", "1", 0, 1, "machine", False, "memory in use over the limit that applies",
            lambda w: w.record.memory_ratio),
    Feature("gpu_use", "1", 0, 1, "machine", False, "GPU utilisation",
            lambda w: w.record.gpu_utilisation),
    Feature("gpu_memory", "1", 0, 1, "machine", False, "GPU memory in use",
            lambda w: w.record.gpu_memory_ratio),
    Feature("accuracy", "1", 0, 1, "hook", True, "mean accuracy of this worker's batches",
            lambda w: w.accuracy),
    Feature("accuracy_gain", "1", -1, 1, "hook", True, "its change since the window seen before",
            lambda w: w.accuracy - w.accuracy_before),
    Feature("accuracy_std", "1", 0, 1, "hook", False, "its standard deviation over the window",
            lambda w: w.record.accuracy_std),
    Feature("local_loss", "log(loss)", 0, 20, "hook", False, "log1p of the mean loss of this worker's samples",
            lambda w: _log(w.record.loss)),
    Feature("local_loss_fall", "1", -1, 1, "hook", False, "relative fall of that loss since the window seen before",
            lambda w: _fall(w.loss_before, w.record.loss)),
    Feature("iteration_time", "1", 0, 1000, "hook", True, "iteration time over the reference iteration time",
            iteration_time),
    Feature("compute_share", "1", 0, 1, "hook", False, "part of the window spent computing",
            _share(lambda r: r.compute_s)),
    Feature("push_pull_share", "1", 0, 1, "hook", False, "part in which nobody but the network was waited for",
            _share(lambda r: r.push_pull_s)),
    Feature("wait_share", "1", 0, 1, "hook", False, "part spent waiting for other workers",
            _share(lambda r: r.wait_s)),
    Feature("relative_speed", "log2", -10, 10, "hook", False, "samples per second of computing, over the workers' mean",
            lambda w: _log2(_ratio(speed(w.record), w.mean_speed))),
    Feature("gradient_std", "1", 0, 10, "hook", True, "standard deviation of |g_i| over the window, over its mean",
            lambda w: w.record.grad_norm_std),
    Feature("gradient_variance", "1", 0, 1, "hook", True, "1 - |g|^2 / |g_i|^2: the part of |g_i|^2 that is noise",
            lambda w: gradient_variance(w.record)),
    Feature("batch", "log2/10", 0, 3, "plan", False, "log2 of the batch size over 10",
            lambda w: math.log2(max(w.record.batch_size, 1)) / 10),
    Feature("batch_share", "1", 0, 100, "plan", False, "batch size over the workers' mean",
            lambda w: _ratio(w.record.batch_size * w.workers, w.global_batch)),
)  # fmt: skip

SHARED: tuple[Feature[ClusterWindow], ...] = (
    Feature("loss", "log(loss)", 0, 20, "hook", True, "log1p of the mean loss over all samples",
            lambda c: _log(c.record.global_loss)),
    Feature("loss_fall", "1", -1, 1, "hook", True, "relative fall of that loss since the window seen before",
            lambda c: _fall(c.loss_before, c.record.global_loss)),
    Feature("global_accuracy", "1", 0, 1, "hook", True, "mean accuracy over all samples",
            lambda c: c.record.global_accuracy),
    Feature("global_accuracy_gain", "1", -1, 1, "hook", True, "its change since the window seen before",
            lambda c: c.record.global_accuracy - c.accuracy_before),
    Feature("noise_scale", "log2", -20, 30, "hook", False, "gradient noise scale over the global batch",
            lambda c: _log2(_ratio(c.noise_scale, c.global_batch))),
    Feature("global_batch", "1", 0, 1, "plan", False, "B over the largest B that the bounds allow",
            lambda c: c.global_batch / c.largest_batch),
    Feature("global_batch_size", "log2/10", 0, 4, "plan", False, "log2 of B over 10",
            lambda c: math.log2(max(c.global_batch, 1)) / 10),
    Feature("workers", "log2", 0, 12, "plan", False, "log2 of the number of workers",
            lambda c: math.log2(c.workers)),
    Feature("epoch", "log", 0, 10, "hook", False, "log1p of the passes over the data",
            lambda c: _log(c.record.epoch)),
    Feature("server_cpu", "1", 0, 2, "servers", False, "CPU use of the busiest server, over the cores it may use",
            lambda c: _largest([_ratio(s.system.cpu_ratio, s.system.cpu_cores) for s in c.servers])),
    Feature("server_unread", "log(bytes)", 0, 40, "servers", False, "log1p of bytes waiting to be summed, largest",
            lambda c: _log(_largest([s.unread_bytes for s in c.servers]))),
    Feature("server_unsent", "log(bytes)", 0, 40, "servers", False, "log1p of bytes waiting for the network, largest",
            lambda c: _log(_largest([s.unsent_bytes for s in c.servers]))),
)  # fmt: skip

ALL: tuple[Feature[Any], ...] = (*LOCAL, *SHARED)  # in the order of a row
NAMES = tuple(feature.name for feature in ALL)


def table() -> str:
    """The table of docs/state.md."""
    lines = ["| # | value | scope | unit | range | source | named by | what it is |", "| --- " * 8 + "|"]
    for number, one in enumerate(ALL):
        scope = "local" if number < len(LOCAL) else "global"
        by = "the paper" if one.paper else "us"
        meaning = one.meaning.replace("|", "\\|")
        span = f"{one.low:g} to {one.high:g}"
        lines.append(f"| {number} | `{one.name}` | {scope} | {one.unit} | {span} | {one.source} | {by} | {meaning} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
