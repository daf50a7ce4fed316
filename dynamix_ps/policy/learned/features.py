"""The state of DYNAMIX as a table: one line per number that a learned policy sees, in the order of its input.

Some are per worker (LOCAL), some common to all workers (SHARED). The groups network, system, training and global are
those of DYNAMIX (arXiv 2510.08522, IV-B), which does not publish its exact list and scales. `paper` marks quantities
that it names; every formula and every other line is chosen by us. An unknown value is NaN here, and 0 with a mask of 0
after normalisation (ppo/network.py). `python -m docs.generate` writes the table of docs/state.md.

The formulas take arrays (policy/window_arrays.py), so the arbitrator and the simulator share them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dynamix_ps.policy.window_arrays import Array, Known, WindowArrays, ratio

_GIB = 2.0**30

Source = Literal["kernel", "both sides", "machine", "hook", "servers", "plan"]


@dataclass(frozen=True, slots=True)
class Seen:
    """The input of the formulas: the window, and values that depend on earlier ones. Shapes as in WindowArrays."""

    window: WindowArrays
    accuracy_gain: Array  # per worker, since the previous window seen
    loss_before: Array
    global_accuracy_before: Array
    global_loss_before: Array
    iteration_time: Array  # in units of the reference
    time_shares: Array  # (3, ..., workers), parts of the window: computing, waiting for network, for workers
    gradient_variance: Array  # per worker
    noise_scale: Array  # samples, smoothed
    speed: Array  # per worker, samples per second of computing
    mean_speed: Array  # over the workers


@dataclass(frozen=True, slots=True)
class Feature:
    name: str
    unit: str
    low: float  # values are cut off at low and high
    high: float
    source: Source
    paper: bool  # whether the paper names it
    meaning: str
    value: Callable[[Seen], Known]
    log1p: bool = False  # the number is log1p of the value, unknown where that is negative


def _log2(value: Known) -> Array:
    known = np.asarray(value)
    return np.asarray(np.log2(np.where(known > 0, known, np.nan)))


def _fall(before: Array, now: Array) -> Array:
    return np.asarray((before - now) / np.maximum(np.abs(before), 1e-9))


def _present(seen: Seen, value: Array) -> Array:
    """A value that is known for workers that reported."""
    return value if seen.window.everyone else np.where(seen.window.present, value, np.nan)


LOCAL: tuple[Feature, ...] = (
    Feature("push_throughput", "log(bytes/s)", 0, 30, "kernel", True, "log1p of payload the servers acknowledged",
            lambda s: s.window.push_bytes_per_s, log1p=True),
    Feature("pull_throughput", "log(bytes/s)", 0, 30, "kernel", True, "log1p of payload received from the servers",
            lambda s: s.window.pull_bytes_per_s, log1p=True),
    Feature("push_retransmits", "log(1/s)", 0, 20, "kernel", True, "log1p of segments this worker sent again",
            lambda s: s.window.retransmits_per_s, log1p=True),
    Feature("pull_retransmits", "log(1/s)", 0, 20, "both sides", True, "log1p of segments that servers sent it again",
            lambda s: s.window.pull_retransmits_per_s, log1p=True),
    Feature("rtt", "log(us)", 0, 20, "kernel", False, "log1p of the smoothed round trip to the busiest server",
            lambda s: 1e6 * s.window.rtt_s, log1p=True),
    Feature("push_busy", "1", 0, 1, "kernel", False, "part of the time with data on the way to the servers",
            lambda s: s.window.push_busy),
    Feature("pull_busy", "1", 0, 1, "both sides", False, "part of the time with data on the way back",
            lambda s: s.window.pull_busy),
    Feature("sides_differ", "1", -1, 1, "both sides", False, "push rate the servers see minus the worker's, relative",
            lambda s: s.window.push_difference),
    Feature("cpu_ratio", "1", 0, 1024, "machine", True, "CPU seconds per second of the training process",
            lambda s: s.window.cpu_ratio),
    Feature("cpu_use", "1", 0, 2, "machine", False, "the same over the cores it may use",
            lambda s: ratio(s.window.cpu_ratio, s.window.cpu_cores)),
    Feature("throttled", "1", 0, 1, "machine", False, "part of the time in which a CPU quota stopped it",
            lambda s: s.window.throttled),
    Feature("memory", "log(GiB)", 0, 12, "machine", True, "log1p of the resident set",
            lambda s: s.window.memory_bytes / _GIB, log1p=True),
    Feature("memory_use", "1", 0, 1, "machine", False, "memory in use over the limit that applies",
            lambda s: s.window.memory_ratio),
    Feature("gpu_use", "1", 0, 1, "machine", False, "GPU utilisation",
            lambda s: s.window.gpu_utilisation),
    Feature("gpu_memory", "1", 0, 1, "machine", False, "GPU memory in use",
            lambda s: s.window.gpu_memory_ratio),
    Feature("accuracy", "1", 0, 1, "hook", True, "mean accuracy of this worker's batches",
            lambda s: s.window.accuracy),
    Feature("accuracy_gain", "1", -1, 1, "hook", True, "its change since the previous window",
            lambda s: s.accuracy_gain),
    Feature("accuracy_std", "1", 0, 1, "hook", False, "its standard deviation over the window",
            lambda s: s.window.accuracy_std),
    Feature("local_loss", "log(loss)", 0, 20, "hook", False, "log1p of the mean loss of this worker's samples",
            lambda s: s.window.loss, log1p=True),
    Feature("local_loss_fall", "1", -1, 1, "hook", False, "relative fall of that loss since the previous window",
            lambda s: _fall(s.loss_before, s.window.loss)),
    Feature("iteration_time", "1", 0, 1000, "hook", True, "iteration time over the reference iteration time",
            lambda s: _present(s, s.iteration_time[..., None])),
    Feature("compute_share", "1", 0, 1, "hook", False, "part of the window spent computing",
            lambda s: s.time_shares[0]),
    Feature("push_pull_share", "1", 0, 1, "hook", False, "part spent waiting for the network alone",
            lambda s: s.time_shares[1]),
    Feature("wait_share", "1", 0, 1, "hook", False, "part spent waiting for other workers",
            lambda s: s.time_shares[2]),
    Feature("relative_speed", "log2", -10, 10, "hook", False, "samples per second of computing, over the workers' mean",
            lambda s: _log2(ratio(s.speed, s.mean_speed[..., None]))),
    Feature("gradient_std", "1", 0, 10, "hook", True, "standard deviation of |g_i| over the window, over its mean",
            lambda s: s.window.grad_norm_std),
    Feature("gradient_variance", "1", 0, 1, "hook", True, "1 - |g|^2 / |g_i|^2: the part of |g_i|^2 that is noise",
            lambda s: s.gradient_variance),
    Feature("batch", "log2/10", 0, 3, "plan", False, "log2 of the batch size over 10",
            lambda s: _present(s, np.log2(np.maximum(s.window.planned, 1)) / 10)),
    Feature("batch_share", "1", 0, 100, "plan", False, "batch size over the workers' mean",
            lambda s: _present(s, ratio(
                s.window.planned * s.window.workers[..., None], s.window.global_batch[..., None]
            ))),
)  # fmt: skip

SHARED: tuple[Feature, ...] = (
    Feature("loss", "log(loss)", 0, 20, "hook", True, "log1p of the mean loss over all samples",
            lambda s: s.window.global_loss, log1p=True),
    Feature("loss_fall", "1", -1, 1, "hook", True, "relative fall of that loss since the previous window",
            lambda s: _fall(s.global_loss_before, s.window.global_loss)),
    Feature("global_accuracy", "1", 0, 1, "hook", True, "mean accuracy over all samples",
            lambda s: s.window.global_accuracy),
    Feature("global_accuracy_gain", "1", -1, 1, "hook", True, "its change since the previous window",
            lambda s: s.window.global_accuracy - s.global_accuracy_before),
    Feature("noise_scale", "log2", -20, 30, "hook", False, "gradient noise scale over the global batch",
            lambda s: _log2(ratio(s.noise_scale, s.window.global_batch))),
    Feature("global_batch", "1", 0, 1, "plan", False, "B over the largest B that the bounds allow",
            lambda s: s.window.global_batch / s.window.largest_batch),
    Feature("global_batch_size", "log2/10", 0, 4, "plan", False, "log2 of B over 10",
            lambda s: np.log2(np.maximum(s.window.global_batch, 1)) / 10),
    Feature("workers", "log2", 0, 12, "plan", False, "log2 of the number of workers that are there",
            lambda s: np.log2(np.maximum(s.window.workers, 1))),
    Feature("epoch", "log", 0, 10, "hook", False, "log1p of the passes over the data",
            lambda s: s.window.epoch, log1p=True),
    Feature("server_cpu", "1", 0, 2, "servers", False, "CPU use of the busiest server, over the cores it may use",
            lambda s: s.window.server_cpu),
    Feature("server_unread", "log(bytes)", 0, 40, "servers", False, "log1p of bytes waiting to be summed, largest",
            lambda s: s.window.server_unread_bytes, log1p=True),
    Feature("server_unsent", "log(bytes)", 0, 40, "servers", False, "log1p of bytes waiting for the network, largest",
            lambda s: s.window.server_unsent_bytes, log1p=True),
)  # fmt: skip

ALL: tuple[Feature, ...] = (*LOCAL, *SHARED)  # in the order of a row
NAMES = tuple(feature.name for feature in ALL)
_PADDING = 16  # floats: columns whose distance is a power of two share a few lines of the cache, and copies are slow


class _Columns:
    """Some of the numbers as columns, each cut off at its limits."""

    def __init__(self, features: tuple[Feature, ...]) -> None:
        self._features = features
        self._low = np.array([feature.low for feature in features], dtype=np.float32)[:, None]
        self._high = np.array([feature.high for feature in features], dtype=np.float32)[:, None]
        self._logs = np.flatnonzero([feature.log1p for feature in features])

    def fill(self, seen: Seen, values: Array) -> None:
        """Write the numbers to `values`, (numbers, ...), float32."""
        for number, feature in enumerate(self._features):
            values[number] = feature.value(seen)
        values = values.reshape(len(values), -1)  # a view
        logs = values[self._logs]
        values[self._logs] = np.log1p(np.where(logs >= 0, logs, np.nan))
        np.maximum(values, self._low, out=values)
        np.minimum(values, self._high, out=values)


_LOCAL_COLUMNS, _SHARED_COLUMNS = _Columns(LOCAL), _Columns(SHARED)


def rows(seen: Seen) -> Array:
    """One float32 row of LOCAL + SHARED values per worker, NaN where unknown; shape (..., workers, len(NAMES))."""
    shape = seen.window.planned.shape
    columns = np.empty((len(ALL), seen.window.planned.size + _PADDING), dtype=np.float32)[:, :-_PADDING]
    of_workers = columns.reshape(len(ALL), *shape)  # a view
    shared = np.empty((len(SHARED), *shape[:-1]), dtype=np.float32)
    with np.errstate(over="ignore"):  # values too large for float32 are cut off
        _LOCAL_COLUMNS.fill(seen, of_workers[: len(LOCAL)])
        _SHARED_COLUMNS.fill(seen, shared)
    of_workers[len(LOCAL) :] = shared[..., None]
    return np.ascontiguousarray(columns.T).reshape(*shape, len(ALL))


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
