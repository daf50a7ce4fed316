"""The pictures of what was measured beside training: network, machine, gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from dynamix_ps.report.plots.history import History, WorkerSeries
from dynamix_ps.report.plots.style import (
    LEGEND_LIMIT,
    SERVER_COLOUR,
    WORKER_COLOURS,
    finish,
    log_scale,
    point_style,
    worker_lines,
)
from dynamix_ps.run_record.values import known_sum, ratio

SERVER_STYLES = ("--", ":", "-.")
_LEAST_PART = 0.1  # of the bytes of sums, which crosses a network where sums do (chosen by us)


def sums(axes: Any, history: History) -> None:
    """Gradient bytes per second that each worker gave into sums."""
    _from_zero(axes, history, "sums (MB/s)", lambda worker: _scaled(worker, "summed_bytes_per_s", 1e-6))


def only_sums(history: History) -> bool:
    """Whether sums are known, and no worker's payload on a network is that of its sums: they go through shared memory.

    What crosses a network then are calls alone. Where nobody measures the network, sums are all that is known.
    """
    workers = history.workers.values()
    known = any(not math.isnan(value) for worker in workers for value in worker.measured["summed_bytes_per_s"])
    return known and not any(_by_network(worker) for worker in workers)


def _by_network(worker: WorkerSeries) -> bool:
    columns = zip(worker.measured["push_bytes_per_s"], worker.measured["summed_bytes_per_s"], strict=True)
    known = [pair for pair in columns if not any(map(math.isnan, pair))]
    return sum(pushed for pushed, _ in known) > _LEAST_PART * sum(summed for _, summed in known)


def push(axes: Any, history: History) -> None:
    """Payload per second from each worker to the servers, as the worker sees it."""
    _from_zero(axes, history, "push (MB/s)", lambda worker: _scaled(worker, "push_bytes_per_s", 1e-6))


def pull(axes: Any, history: History) -> None:
    """Payload per second from the servers to each worker, as the worker sees it."""
    _from_zero(axes, history, "pull (MB/s)", lambda worker: _scaled(worker, "pull_bytes_per_s", 1e-6))


def retransmits(axes: Any, history: History) -> None:
    """Segments sent again per second: by the worker, and by the servers to it where they reported."""

    def both(worker: WorkerSeries) -> list[float]:
        own = worker.measured["retransmits_per_s"]
        links = [history.links.get((worker.rank, window)) for window in worker.windows]
        back = [link.pull_retransmits_per_s if link else float("nan") for link in links]
        return [known_sum(pair) for pair in zip(own, back, strict=True)]

    _from_zero(axes, history, "retransmitted segments (1/s)", both, least=1.0)


def rtt(axes: Any, history: History) -> None:
    """Smoothed round trip of each worker's busiest connection."""
    _from_zero(axes, history, "round trip (ms)", lambda worker: _scaled(worker, "rtt_s", 1e3))


def cpu(axes: Any, history: History) -> None:
    """CPU in use, of the cores that each process may use; servers and scheduler in grey."""

    def share(worker: WorkerSeries) -> list[float]:
        used, usable = worker.measured["cpu_ratio"], worker.measured["cpu_cores"]
        return [100 * ratio(part, whole) for part, whole in zip(used, usable, strict=True)]

    highest = worker_lines(axes, history, share)
    for number, (name, server) in enumerate(sorted(history.servers.items())):
        style = {"color": SERVER_COLOUR, "linestyle": SERVER_STYLES[number % len(SERVER_STYLES)]}
        axes.plot(server.time_s, server.cpu_percent, linewidth=1.2, label=name, **style)
    axes.set_ylabel("CPU, of the usable cores (%)")
    finish(axes, history, highest is not None or bool(history.servers), legend=False)
    axes.set_ylim(bottom=0)


def throttled(axes: Any, history: History) -> None:
    """Time in which a CPU quota held each worker back."""
    _from_zero(axes, history, "held back by a CPU quota (%)", lambda w: _scaled(w, "throttled", 100), least=10.0)


def gpu(axes: Any, history: History) -> None:
    """Use of each worker's GPU."""
    _from_zero(axes, history, "GPU in use (%)", lambda worker: _scaled(worker, "gpu_utilisation", 100), least=10.0)


def memory(axes: Any, history: History) -> None:
    """Resident memory of each worker."""
    _from_zero(axes, history, "resident memory (GB)", lambda worker: _scaled(worker, "memory_bytes", 1e-9))


def noise_scale(axes: Any, history: History) -> None:
    """Gradient noise scale beside the global batch, both in one unit: far below it, larger batches help little."""
    axes.set_ylabel(history.counted)
    first = next(iter(history.workers.values()), None)
    if first is not None:
        style = {"color": WORKER_COLOURS[0], "linewidth": 1.6} | point_style(len(first.window_s))
        axes.plot(first.window_s, first.global_batch, label="global batch", **style)
    if any(value > 0 for value in history.noise_scale):
        style = {"color": WORKER_COLOURS[5], "linewidth": 1.6} | point_style(len(history.noise_scale))
        axes.plot(history.noise_s, history.noise_scale, label="gradient noise scale (smoothed)", **style)
        log_scale(axes)
    finish(axes, history, first is not None and bool(first.window_s), legend=True)


def gradient_std(axes: Any, history: History) -> None:
    """Standard deviation of every worker's gradient norm over a window, divided by its mean."""
    label = "std of |g| over a window / its mean"
    _from_zero(axes, history, label, lambda worker: worker.measured["grad_norm_std"], legend=True)


def learning_rate(axes: Any, history: History) -> None:
    """Factor on the script's learning rate, and what the guard leaves of it."""
    axes.set_ylabel("factor on the learning rate")
    first = next(iter(history.workers.values()), None)
    shown = first is not None and has_factor(history)
    if first is not None and shown:
        for name, label, colour in (("lr_factor", "in all", 0), ("lr_guard", "left by the guard", 5)):
            style = {"color": WORKER_COLOURS[colour], "linewidth": 1.6} | point_style(len(first.window_s))
            axes.plot(first.window_s, first.measured[name], label=label, **style)
        log_scale(axes)
    finish(axes, history, shown, legend=True)


def has_factor(history: History) -> bool:
    """Whether the learning rate was ever another one than the script's."""
    factors = (factor for worker in history.workers.values() for factor in worker.measured["lr_factor"])
    return any(factor > 0 and factor != 1 for factor in factors)


def _from_zero(
    axes: Any,
    history: History,
    label: str,
    values: Callable[[WorkerSeries], Sequence[float]],
    least: float = 0.0,
    legend: bool = False,
) -> None:
    """Lines over an axis from 0 up to `least` at the least."""
    axes.set_ylabel(label)
    highest = worker_lines(axes, history, values)
    finish(axes, history, highest is not None, legend=legend and len(history.workers) <= LEGEND_LIMIT)
    axes.set_ylim(0, 1.08 * max(highest or 0.0, least) or 1.0)


def _scaled(worker: WorkerSeries, name: str, factor: float) -> list[float]:
    return [factor * value for value in worker.measured[name]]
