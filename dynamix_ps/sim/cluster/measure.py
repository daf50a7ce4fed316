"""What hook, probe, machine and servers report of a simulated window: true values with measurement noise. Pure.

Sampled values vary as in training: means over b samples by 1/sqrt(b), norms of gradients as if the noise had
`directions` independent directions. The estimator of metrics/noise.py gives the noise scale. Quantities outside the
cost model (queues, CPU shares, memory) follow simple rules chosen by us.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dynamix_ps.apportion import Whole
from dynamix_ps.sim.cluster import learning
from dynamix_ps.sim.cluster.cost import SEGMENT_BYTES, WindowTimes
from dynamix_ps.sim.cluster.parameters import Mask, Parameters, Reals
from dynamix_ps.sim.cluster.traces import Conditions

NORM_EVERY = 10  # iterations between measured gradient norms, as in worker_hooks/backward.py
LOSS_SPREAD = np.float32(1.0)  # standard deviation of a sample's loss over its mean
QUEUE_BYTES = np.float32(65536.0)  # waiting in a busy link or socket
SERVER_CORES = np.float32(4.0)
SUM_BYTES_PER_S = np.float32(2e9)  # bytes that one core of a server sums
_NAN_OR_1 = np.array([np.nan, 1], dtype=np.float32)
COMPUTE, LOSS, VARIANCE, SIGNAL, RETRANSMITS = range(5)
DRAWS = 5  # arrays (E, W) of standard normal numbers that a window needs


@dataclass(frozen=True, slots=True)
class TrainingState:
    """State of training in the middle of the window; (E,)."""

    excess: Reals
    signal: Reals  # squared norm of the true gradient
    noise_scale: Reals
    epoch: Reals


@dataclass(frozen=True, slots=True)
class Gradients:
    """Squared norms averaged over the measured iterations of a window, and the estimates of V and S from them."""

    local: Reals  # (E, W)
    whole: Reals  # (E,)
    spread: Reals  # (E, W), std of |g_i| over its mean, from iteration to iteration
    variance: Reals  # (E,)
    signal: Reals


def batches(parameters: Parameters, training: TrainingState, sizes: Reals, draw: Reals) -> tuple[Reals, Reals]:
    """Loss and accuracy of every worker's samples in this window; (E, W) both."""
    loss = learning.training_loss(parameters, training.excess)[:, None]
    accuracy = learning.training_accuracy(parameters, training.excess)[:, None]
    deviation = draw / np.sqrt(np.maximum(sizes, 1) * parameters.iterations[:, None])
    sampled_accuracy = accuracy - deviation * np.sqrt(accuracy * (1 - accuracy))  # accuracy is low where loss is high
    return np.maximum(loss * (1 + LOSS_SPREAD * deviation), 0), np.clip(sampled_accuracy, 0, 1)


def gradients(
    parameters: Parameters, training: TrainingState, sizes: Reals, draws: Reals, unit_noise: Reals
) -> Gradients:
    """Norms of the local gradients and of their weighted mean.

    g_i = G + noise of covariance Sigma / b_i, V = tr Sigma = N |G|^2 spread evenly over d directions:
    |g_i|^2 = S + V/b_i, with standard deviations of 2 sqrt(S V / (d b_i)) from G and V/b_i sqrt(2/d) from the noise.
    The first part is common to g and the weighted g_i, the second is not.

    Args:
        draws: (DRAWS, E, W); unit_noise: (E,), standard normal, of the norm of g.
    """
    batch = sizes.sum(axis=-1)
    used = np.maximum(sizes, 1)
    signal = training.signal
    each = (signal * training.noise_scale)[:, None] / used
    per_direction = 1 / parameters.directions
    scatter = np.sqrt(2 * per_direction)[:, None] * each
    along = np.sqrt((4 * signal * per_direction)[:, None] * each)
    measured = np.sqrt(np.ceil(parameters.iterations / NORM_EVERY))
    mean = signal[:, None] + each
    leaning = along * draws[SIGNAL] / measured[:, None]
    local = np.maximum(mean + leaning + scatter * draws[VARIANCE] / measured[:, None], 0)
    of_mean = signal * training.noise_scale / np.maximum(batch, 1)
    leaning = (leaning * sizes).sum(axis=-1) / np.maximum(batch, 1)
    whole = np.maximum(signal + of_mean * (1 + np.sqrt(2 * per_direction) * unit_noise / measured) + leaning, 0)
    variance, estimate = noise_estimate(sizes, local, whole)
    return Gradients(local, whole, 0.5 * np.sqrt(scatter**2 + along**2) / mean, variance, estimate)


def noise_estimate(sizes: Reals, local: Reals, whole: Reals) -> tuple[Reals, Reals]:
    """V and S as metrics/noise.py estimates them; NaN with fewer than two workers that had samples."""
    active = (sizes > 0).sum(axis=-1).astype(np.float32)
    between = (sizes * (local - whole[:, None])).sum(axis=-1)
    variance = between / np.where(active > 1, active - 1, np.float32(np.nan))
    return variance, whole - variance / np.maximum(sizes.sum(axis=-1), 1)


def links(
    parameters: Parameters, conditions: Conditions, times: WindowTimes, draw: Reals
) -> tuple[Reals, Reals, Reals, Reals]:
    """(bytes/s one way, retransmits/s, round trip in s, part of the time busy); (E, W), NaN unknown.

    What goes to a server on the worker's own host does not pass a connection.
    """
    known = _known(parameters.knows_network)
    rate = (times.bytes / times.iteration_s)[:, None] * (1 - parameters.server_share) * known
    duration_s = (times.iteration_s * parameters.iterations)[:, None]
    lost = (parameters.loss + conditions.loss) * (rate / SEGMENT_BYTES) * duration_s
    counted = np.maximum(lost + np.sqrt(lost) * draw, 0) / duration_s
    busy = np.minimum(times.transfer_s / times.iteration_s[:, None], 1) * known
    speed = parameters.link_bytes_per_s * conditions.bandwidth
    rtt_s = parameters.latency_s * conditions.latency + busy * QUEUE_BYTES / speed
    return rate, counted, rtt_s, busy


def machines(
    parameters: Parameters, conditions: Conditions, times: WindowTimes, sizes: Reals
) -> tuple[Reals, Reals, Reals, Reals, Reals, Reals]:
    """(CPU seconds per second, cores, part of the time held back by a quota, resident bytes, memory over its limit, GPU
    use); (E, W), NaN unknown.

    A slowed process gets less CPU. A GPU's process keeps one core busy. A quota is the number of cores.
    """
    known = _known(parameters.knows_machine)
    computing = times.sustained_s / times.iteration_s[:, None] * known
    given = computing / np.maximum(conditions.slow, 1)
    cpu = np.where(parameters.gpu, 1, parameters.cores)[:, None] * parameters.quota * given
    base, each = parameters.base_memory_bytes[:, None], parameters.sample_memory_bytes[:, None]
    memory = (base + each * sizes) * known
    use = np.minimum(memory / (base + each * parameters.memory_limit), 1)
    gpu = computing * _known(parameters.gpu)
    held = (times.compute_s - parameters.quota * times.sustained_s) / times.iteration_s[:, None]
    throttled = np.where(parameters.quota < 1, held, 0) * known
    return cpu, parameters.cores[:, None] * parameters.quota * known, throttled, memory, use, gpu


def servers(parameters: Parameters, times: WindowTimes) -> tuple[Reals, Reals, Reals]:
    """(CPU use, bytes waiting to be summed, bytes waiting to be sent) of the busiest server; (E,), NaN unknown."""
    known = _known(parameters.knows_servers & ~parameters.ring)[:, 0]
    inflow = parameters.n_workers * times.bytes / times.iteration_s
    cpu = np.minimum(inflow / parameters.servers / (SERVER_CORES * SUM_BYTES_PER_S), 1).astype(np.float32)
    use = np.minimum(inflow / times.served_bytes_per_s, 1)
    waiting = QUEUE_BYTES * parameters.n_workers * use
    return cpu * known, waiting * use * known, waiting * known


def both_sides(parameters: Parameters) -> Reals:
    """1 where both ends of the links are known, else NaN; (E, 1)."""
    return _known(parameters.knows_network & parameters.knows_both_sides & ~parameters.ring)


def _known(which: Mask) -> Reals:
    return _NAN_OR_1[which.astype(np.intp)][:, None]


def epoch(parameters: Parameters, samples: Whole | Reals) -> Reals:
    """Passes over the data; (E,)."""
    return (samples / parameters.data_samples).astype(np.float32)
