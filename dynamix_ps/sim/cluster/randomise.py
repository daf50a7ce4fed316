"""Clusters drawn at random to train policies on: varied enough to include real clusters (chosen by us).

Quantities are drawn over orders of magnitude. Two are then set so that a policy can learn from every cluster: the noise
scale, so that the best global batch lies within the bounds, and the length of training, so that a good policy takes 60
to 300 windows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.policy.base import LR_RULES
from dynamix_ps.sim.cluster.effect_fields import no_effects
from dynamix_ps.sim.cluster.parameters import BURST_KINDS, NEUTRAL, Kind, Parameters, Reals

LOW, HIGH = 8, 4096  # bounds of every worker's size
MAX_WINDOWS = 400
EVENTS = 6  # most events of a trace
_RULE_PART = (0.1, 0.1, 0.3, 0.5)  # how often each of LR_RULES


def draw(rng: np.random.Generator, environments: int, n_workers: int, window: int = 20) -> Parameters:
    """`environments` clusters of `n_workers` workers each, with windows of `window` iterations."""
    one, all_ = (environments,), (environments, n_workers)

    def log_uniform(low: float, high: float, shape: tuple[int, ...] = one) -> Reals:
        drawn: Reals = np.exp(rng.uniform(np.log(low), np.log(high), shape)).astype(np.float32)
        return drawn

    def uniform(low: float, high: float, shape: tuple[int, ...] = one) -> Reals:
        return rng.uniform(low, high, shape).astype(np.float32)

    def chance(part: float, shape: tuple[int, ...] = one) -> NDArray[Any]:
        return rng.random(shape) < part

    # speeds: from equal workers to a factor of 10
    unevenness = np.where(chance(0.25), 0, uniform(0.2, 1))[:, None]
    slower = np.exp(unevenness * uniform(0, np.log(10), all_))
    per_sample_s = log_uniform(1e-5, 5e-3)[:, None] * slower
    fixed_s = per_sample_s * log_uniform(2, 200)[:, None]
    initial_each = np.exp2(rng.integers(4, 9, one)).astype(np.int64)  # 16 to 256
    initial = np.repeat(initial_each[:, None], n_workers, axis=1)
    memory_limit = np.where(chance(0.2)[:, None], log_uniform(256, HIGH, all_), 4 * HIGH)

    # network: a transfer of the model takes 2 % to 300 % of the compute time at the initial sizes
    computing_s = (fixed_s + per_sample_s * initial).mean(axis=-1)
    link = log_uniform(1e6, 5e9)
    model_bytes = np.clip(link * computing_s * log_uniform(0.02, 3), 1e4, 1e10)
    poor = chance(0.5)[:, None] & chance(1.5 / n_workers, all_)  # in half of the clusters one or two slow links
    links = link[:, None] * np.where(poor, log_uniform(0.1, 0.7, all_), uniform(0.9, 1.1, all_))
    latency_s = log_uniform(5e-5, 5e-3)[:, None] * uniform(0.8, 1.25, all_)
    lossy = chance(0.3)[:, None] & chance(2 / n_workers, all_)
    servers = rng.integers(1, 5, one)
    server_bytes_per_s = link * n_workers * log_uniform(0.3, 3)

    # durations are multiples of this cluster's window
    window_s = (window * 1.5 * computing_s).astype(np.float32)
    burst_gap_s, burst_length_s, burst_value = _bursts(rng, window_s, all_)
    events = _events(rng, window_s, all_)

    # statistics: the best B, sqrt(N F R) with F the fixed time and R the speed, lies within the bounds
    rate = (1 / per_sample_s).sum(axis=-1)
    fixed_all_s = fixed_s.mean(axis=-1) + 0.5 * model_bytes / link
    best = n_workers * log_uniform(4 * LOW, HIGH / 4)
    middle = np.clip(best**2 / (rate * fixed_all_s), 10, 1e6).astype(np.float32)  # N in the middle of training
    growth, decay = uniform(0.3, 1.8), uniform(0.5, 1.2)
    bends = uniform(4, 12)  # progress at the end over its scale
    noise_scale = middle * (1 + 0.5 * bends) ** (-decay * growth)
    per_step = 0.9 / (1 + middle / np.clip(best, n_workers * LOW, n_workers * HIGH))
    progress_scale = uniform(60, 300) * window * per_step / bends
    accuracy_power, best_accuracy, gap = uniform(0.7, 1.3), uniform(0.6, 0.99), uniform(0, 0.04)
    classes = log_uniform(2, 1000)
    reached = 1 - (1 + bends) ** (-decay * accuracy_power)
    target = 1 / classes + (best_accuracy - 1 / classes) * reached * (1 - gap / 2)
    gpu = chance(0.4)
    return Parameters(
        fixed_s=fixed_s.astype(np.float32),
        per_sample_s=per_sample_s.astype(np.float32),
        memory_limit=memory_limit.astype(np.float32),
        quota=_quotas(rng, slower, gpu).astype(np.float32),
        link_bytes_per_s=links.astype(np.float32),
        latency_s=latency_s.astype(np.float32),
        loss=np.where(lossy, log_uniform(1e-5, 5e-3, all_), 0).astype(np.float32),
        server_share=np.zeros(all_, dtype=np.float32),
        **no_effects(environments, n_workers),
        low=np.full(all_, LOW, dtype=np.int64),
        high=np.full(all_, HIGH, dtype=np.int64),
        initial=initial,
        burst_gap_s=burst_gap_s,
        burst_length_s=burst_length_s,
        burst_value=burst_value,
        **events,
        window=np.full(one, window, dtype=np.int64),
        warm_up=uniform(1, 1.6),
        jitter=log_uniform(0.005, 0.15),
        drift=np.where(chance(0.4), uniform(0.02, 0.3), 0).astype(np.float32),
        drift_s=window_s * log_uniform(5, 100),
        servers=servers,
        server_bytes_per_s=server_bytes_per_s.astype(np.float32),
        ring=chance(0.15),
        model_bytes=model_bytes.astype(np.float32),
        overlap=uniform(0, 1),
        cores=log_uniform(1, 64),
        base_memory_bytes=log_uniform(2e8, 4e9),
        sample_memory_bytes=log_uniform(1e4, 1e7),
        knows_network=chance(0.75),
        knows_both_sides=chance(0.6),
        knows_servers=chance(0.7),
        knows_machine=chance(0.8),
        gpu=gpu,
        lr_rule=rng.choice(len(LR_RULES), size=one, p=_RULE_PART).astype(np.int8),
        tuning=uniform(0.4, 1),
        noise_scale=noise_scale.astype(np.float32),
        noise_growth=growth,
        progress_scale=progress_scale.astype(np.float32),
        decay=decay,
        accuracy_power=accuracy_power,
        first_loss=np.log(classes),
        last_loss=log_uniform(0.01, 0.3),
        chance=1 / classes,
        best_accuracy=best_accuracy,
        gap=gap,
        gap_batch=best * uniform(0.5, 4),
        gradient_sq=log_uniform(1e-4, 100),
        directions=log_uniform(10, 300),
        data_samples=log_uniform(1e4, 1e6),
        target_accuracy=target.astype(np.float32),
        max_windows=np.full(one, MAX_WINDOWS, dtype=np.int64),
    )


def _quotas(rng: np.random.Generator, slower: NDArray[Any], gpu: NDArray[Any]) -> Reals:
    """In half of the clusters without GPU, CPU quotas slow the slow workers down; the fastest may have one too."""
    quota = slower.min(axis=-1, keepdims=True) / slower * rng.uniform(0.7, 1, (len(slower), 1))
    there = (rng.random(len(slower)) < 0.5) & ~gpu
    return np.where(there[:, None], quota, 1)


def _bursts(rng: np.random.Generator, window_s: Reals, all_: tuple[int, int]) -> tuple[Reals, Reals, Reals]:
    """Random slow-downs, slow links and losses: each kind in a fifth of the clusters, on a third of the workers."""
    shape = (all_[0], len(BURST_KINDS), all_[1])
    hit = (rng.random((all_[0], len(BURST_KINDS), 1)) < 0.2) & (rng.random(shape) < 0.35)
    gap = window_s[:, None, None] * np.exp(rng.uniform(np.log(5), np.log(100), shape))
    length = window_s[:, None, None] * np.exp(rng.uniform(np.log(2), np.log(40), shape))
    value = _severity(rng, np.array(BURST_KINDS)[:, None], shape)
    return np.where(hit, gap, np.inf).astype(np.float32), length.astype(np.float32), value


def _events(rng: np.random.Generator, window_s: Reals, all_: tuple[int, int]) -> dict[str, NDArray[Any]]:
    """Up to EVENTS lasting changes in half of the clusters: slow-downs, speed-ups, slower links, slower servers."""
    n, workers = all_
    shape = (n, EVENTS)
    kind = rng.choice(
        [Kind.COMPUTE, Kind.BANDWIDTH, Kind.LOSS, Kind.LATENCY, Kind.SERVER], shape, p=[0.5, 0.2, 0.1, 0.05, 0.15]
    )
    there = (rng.random((n, 1)) < 0.5) & (rng.random(shape) < 0.6)
    start = window_s[:, None] * rng.uniform(5, 250, shape)
    until = start + window_s[:, None] * np.exp(rng.uniform(np.log(10), np.log(300), shape))
    value = _severity(rng, kind[..., None], (*shape, workers))
    hit = rng.random((*shape, workers)) < rng.uniform(0.1, 0.6, shape)[..., None]
    hit |= (kind == Kind.SERVER)[..., None]
    return {
        "event_kind": kind.astype(np.int8),
        "event_by_epoch": np.zeros(shape, dtype=bool),
        "event_from": np.where(there, start, np.inf).astype(np.float32),
        "event_until": until.astype(np.float32),
        "event_every": np.full(shape, np.inf, dtype=np.float32),
        "event_value": np.where(hit, value, NEUTRAL[kind][..., None]).astype(np.float32),
    }


def _severity(rng: np.random.Generator, kind: NDArray[Any], shape: tuple[int, ...]) -> Reals:
    """A value for each kind: compute time 0.6 to 6 times as long, links and servers down to 10 %, loss up to 5 %."""
    much = rng.random(shape)
    slow = np.exp(-0.5 + 2.3 * much)
    thin = np.exp(-2.3 * much)
    lost = np.exp(np.log(1e-4) + np.log(500) * much)
    late = np.exp(3 * much)
    choices = [kind == Kind.COMPUTE, kind == Kind.LOSS, kind == Kind.LATENCY]
    value: Reals = np.select(choices, [slow, lost, late], thin).astype(np.float32)
    return value
