"""How long an iteration takes, and how a worker's hook splits that time. Pure, shapes (E, W) and (E,).

An iteration is computing, then a sum over all workers. Worker i computes for c_i and then needs the network for n_i,
the part that overlap does not hide. A gradient travels in pieces: a piece is pulled as soon as all workers have pushed
it, while later pieces are still being pushed. So from the moment when worker i begins an iteration until worker j can
begin the next one, at least c_i + max (n_i, n_j) pass. In steady state an iteration takes the largest mean of these
times around any cycle of workers (a max-plus system). Cycles of two decide:

    T = max_ij ((c_i + c_j) / 2 + max (n_i, n_j)) = (max c_i + max (c_i + 2 n_i)) / 2

That is max c_i + n where all have the same network. A worker behind a thin link, which has computed early, pushes
while others compute, but its next iteration begins late: half of the time by which it is early is won. Compute times
jitter independently, so the mean of a maximum exceeds the largest mean: for jitter with a Gumbel distribution (skewed
to long times) of scale s it is exactly

    E max x_i = s log sum exp(x_i / s)

The hook's push_pull is the shortest time that any worker waits, T - max c_i. A worker's wait is the rest of its own
waiting time (worker_hooks/observe/window.py).

A CPU quota q differs from a slow machine: a worker that has waited computes at full speed, q c_i, until it has used up
the quota of the period. The iteration takes as long as if all workers were slow all the time. But a worker that needs
only the part u = (c_i + n_i) / T of it measures a compute time of c_i (q + (1 - q) u^3). The power fits recorded runs
of three workers (u from 0.3 to 1). Formulas without a source are chosen by us.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dynamix_ps.comm.byteps.placement import link_traffic
from dynamix_ps.sim.cluster.effects.cliffs import extra
from dynamix_ps.sim.cluster.effects.contention import contended
from dynamix_ps.sim.cluster.effects.tiles import padding
from dynamix_ps.sim.cluster.parameters import Parameters, Reals
from dynamix_ps.sim.cluster.traces import Conditions

BACKWARD = np.float32(2 / 3)  # of computing: twice the forward pass (arXiv 2001.08361, 2.1)
LAST_BUCKET = np.float32(0.1)  # part of the gradients that overlap cannot hide
LAST_PIECES = np.float32(0.1)  # of a transfer, on top: headers, and the last pieces, pulled when all are pushed
OVER_MEMORY = np.float32(8.0)  # factor on the time of every sample beyond the memory limit
SEGMENT_BYTES = np.float32(1448.0)  # payload of a TCP segment on Ethernet
MATHIS = np.float32(1.22)  # rate <= 1.22 segment / (rtt sqrt(loss)), Mathis et al., SIGCOMM CCR 1997
TIMEOUT_S = np.float32(0.2)  # smallest retransmission timeout of Linux
TAIL_SEGMENTS = np.float32(3.0)  # last segments of a transfer: only a timeout repairs their loss
THROTTLED_POWER = np.float32(3.0)  # the power of u
TINY = np.float32(1e-6)  # for shares of 0
EULER_GAMMA = np.float32(np.euler_gamma)  # mean of the standard Gumbel distribution
_GUMBEL = np.float32(np.sqrt(6) / np.pi)  # scale over standard deviation


@dataclass(frozen=True, slots=True)
class WindowTimes:
    """Means over the iterations of a window."""

    compute_s: Reals  # (E, W), as the hook measures it
    sustained_s: Reals  # (E, W), compute time at the speed of the quota
    push_pull_s: Reals  # (E,)
    wait_s: Reals  # (E, W)
    iteration_s: Reals  # (E,)
    transfer_s: Reals  # (E, W), transfer of a worker's data in one direction
    bytes: Reals  # (E,), of a worker in one direction
    served_bytes_per_s: Reals  # (E,), that the servers can take in from all workers together

    @property
    def load(self) -> Reals:
        """Part of the time in which each worker computes, (E, W)."""
        return np.minimum(self.sustained_s / self.iteration_s[..., None], 1)


def iteration_times(parameters: Parameters, conditions: Conditions, sizes: Reals, unit_noise: Reals) -> WindowTimes:
    """Times of one window with these sizes.

    Args:
        sizes: (E, W), b_i; or (K, E, W) for K plans, and then all times have this axis too.
        unit_noise: (E, W), standard normal: random part of the workers' compute times in this window.
    """
    mean_s = compute_s(parameters, conditions, sizes)
    relative_jitter = unit_noise * (parameters.jitter / np.sqrt(parameters.iterations))[:, None]
    computing_s = mean_s * np.maximum(1 + relative_jitter, 0.1)
    spread_s = np.maximum(_GUMBEL * parameters.jitter, 1e-6) * computing_s.max(axis=-1)

    def largest(seconds: Reals) -> Reals:
        return _mean_of_largest(seconds, seconds.max(axis=-1), spread_s)

    return _times(parameters, conditions, computing_s, computing_s, largest)


def drawn_times(parameters: Parameters, conditions: Conditions, sizes: Reals, draws: Reals) -> WindowTimes:
    """Times of a single iteration, whose means over many are those of `iteration_times`.

    Args:
        sizes: (E, W), b_i.
        draws: (E, W), from the standard Gumbel distribution: random part of the workers' compute times.
    """
    mean_s = compute_s(parameters, conditions, sizes)
    spread_s = _GUMBEL * parameters.jitter * mean_s.max(axis=-1)
    computing_s = np.maximum(mean_s + spread_s[:, None] * (draws - EULER_GAMMA), np.float32(0.1) * mean_s)
    return _times(parameters, conditions, computing_s, mean_s, lambda seconds: seconds.max(axis=-1))


def _times(
    parameters: Parameters,
    conditions: Conditions,
    computing_s: Reals,
    hiding_s: Reals,
    largest: Callable[[Reals], Reals],
) -> WindowTimes:
    """Times where workers compute for `computing_s`, (E, W).

    Args:
        hiding_s: (E, W), compute times behind which the network hides.
        largest: of the seconds of all workers, (E, W) -> (E,).
    """
    bytes_, transfer_s, served_bytes_per_s = transfers(parameters, conditions)
    exposed_s = exposed(parameters, hiding_s, hiding_s.max(axis=-1, keepdims=True), transfer_s)
    iteration_s = _together_s(computing_s, exposed_s, largest)
    busy = (computing_s + exposed_s) / _together_s(computing_s, exposed_s, lambda s: s.max(axis=-1))[..., None]
    full_speed = np.power(busy, THROTTLED_POWER, out=np.ones_like(busy), where=parameters.quota < 1)
    seen_s = computing_s * (parameters.quota + (1 - parameters.quota) * full_speed)
    last_s = largest(seen_s)
    push_pull_s, wait_s = iteration_s - last_s, last_s[..., None] - seen_s
    return WindowTimes(seen_s, computing_s, push_pull_s, wait_s, iteration_s, transfer_s, bytes_, served_bytes_per_s)


def compute_s(parameters: Parameters, conditions: Conditions, sizes: Reals) -> Reals:
    """(fixed + per sample * b) * slow-down; samples beyond the memory limit take OVER_MEMORY times as long.

    effects/ says how tiles, cliffs and workers of one host change this.
    """
    used = np.maximum(sizes, 1)  # the hook runs at least one sample
    samples = used + extra(sizes, parameters.memory_limit, OVER_MEMORY)
    if parameters.has_tiles:
        samples = samples + padding(used, parameters.tile_samples, parameters.tile_part)
    if parameters.has_cliffs:
        samples = samples + extra(sizes, parameters.cliff_samples, parameters.cliff_slope)
    seconds: Reals = (parameters.fixed_s + parameters.per_sample_s * samples) * conditions.slow * conditions.heat
    return contended(seconds, parameters.host, parameters.contention) if parameters.has_contention else seconds


def transfers(parameters: Parameters, conditions: Conditions) -> tuple[Reals, Reals, Reals]:
    """Bytes per iteration and direction (E,), each worker's transfer time (E, W), and the rate of the servers (E,).

    Parameter servers: every worker moves the model, at the rate of its link or its part of the servers' bandwidth
    (all workers push at the same time). A link also carries what a server on the worker's host receives and sends. As
    every worker needs a part from every server, the slowest server delays all of them. Shares do not change while
    training runs. Ring: 2 (n-1)/n of the model at the rate of the slowest link (Patarasuk and Yuan, J. Parallel
    Distrib. Comput. 2009), each of the 2 (n-1) steps half the longest round trip.
    """
    n = np.float32(parameters.n_workers)
    latency_s = parameters.latency_s * conditions.latency
    loss = parameters.loss + conditions.loss
    connections = np.where(parameters.ring, 1, parameters.servers).astype(np.float32)[:, None]
    lossy = MATHIS * SEGMENT_BYTES * connections / (latency_s * np.sqrt(np.maximum(loss, 1e-12)))
    link = np.minimum(parameters.link_bytes_per_s * conditions.bandwidth, np.where(loss > 0, lossy, np.inf))
    pushed, served = link, parameters.server_bytes_per_s * conditions.server
    if parameters.has_servers_beside:
        share = parameters.server_share
        pushed = link / np.maximum(link_traffic(1, share, n), TINY)
        beside = (link / np.maximum(share * (n - 1) / n, TINY)).min(axis=-1)
        served = np.minimum(served / np.maximum(1 - share.sum(axis=-1), TINY), beside)
    bytes_ = parameters.model_bytes * np.where(parameters.ring, 2 * (n - 1) / n, 1).astype(np.float32)
    late_s = loss * (TAIL_SEGMENTS * TIMEOUT_S)
    served_s = bytes_[:, None] / np.minimum(pushed, (served / n)[:, None]) + latency_s + late_s
    if not parameters.has_rings:
        return bytes_, served_s, served
    around_s = bytes_ / link.min(axis=-1) + (n - 1) * latency_s.max(axis=-1) + late_s.max(axis=-1)
    return bytes_, np.where(parameters.ring[:, None], around_s[:, None], served_s), served


def _together_s(computing_s: Reals, exposed_s: Reals, largest: Callable[[Reals], Reals]) -> Reals:
    """How long an iteration of all workers takes; see the module's docstring."""
    return (largest(computing_s) + largest(computing_s + 2 * exposed_s)) / 2


def exposed(parameters: Parameters, computing_s: Reals, longest_s: Reals, transfer_s: Reals) -> Reals:
    """Network time that a worker adds to its computing; (..., E, W).

    The part `overlap` of the backward pass hides pushes, except that of the last bucket. What counts is the mean of the
    worker's own backward pass and of the longest one, as cycles of two decide. Pulls run beside the pushes of later
    pieces, except the last. In a ring only the backward pass hides the round trip.

    Args:
        longest_s: compute time of the slowest worker; broadcasts to (..., E, W).
    """
    hidden_s = (parameters.overlap * BACKWARD)[:, None] * (computing_s + longest_s) / 2
    push_s = np.maximum(transfer_s - hidden_s, LAST_BUCKET * transfer_s)
    pull_s = np.where(parameters.ring[:, None], 0, LAST_PIECES * transfer_s)
    return np.asarray(push_s + pull_s)


def _mean_of_largest(mean_s: Reals, largest_s: Reals, spread_s: Reals) -> Reals:
    """E max of Gumbel variables with these means and one scale."""
    weight = np.exp((mean_s - largest_s[..., None]) / spread_s[..., None])
    return np.asarray(largest_s + spread_s * np.log(weight.sum(axis=-1)))
