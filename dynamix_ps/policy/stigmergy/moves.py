"""From the size that a worker would like to its next size. Pure; the same seed, window and rank give the same size.

    lateness_i = log (size_i / wish_i), beyond what all have alike
    share      = 1 / (1 + crowding * m)         m: part of the workers whose lateness is outside of the dead band
    move_i     = growth - share * lateness_i    growth: log of the B gone for over the present B

So not everybody jumps at once: the more workers would move, the smaller is the share of the way that each goes. No move
is larger than the strongest alarm allows, and without an alarm none is larger than CALM, or one sample. A worker stays
where it would move by less than the dead band, or than SMALLEST_STEP. Otherwise a size is rounded up or down by chance,
so that moves of less than a sample come about in time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from dynamix_ps.apportion import Whole
from dynamix_ps.policy.stigmergy.settings import CALM, StigmergySettings
from dynamix_ps.policy.stigmergy.traces import Array, Mask, TraceField

SMALLEST_STEP = 0.75  # samples: rounding errs by half of one, and a margin
LARGEST_GROWTH = math.log(2)  # of B in one window
LARGEST_LOG = 50.0  # of what is not limited otherwise: no size grows so far


def share_of_way(field: TraceField, settings: StigmergySettings) -> float:
    """Which part of its way every worker goes."""
    outside = np.abs(field.lateness[field.present]) > settings.dead_band
    return 1 / (1 + settings.crowding * float(outside.mean())) if len(outside) else 0.0


def largest_move(field: TraceField) -> float:
    """In which range a move must stay, as a log."""
    return max(CALM, field.alarmed)


def growth_of(wanted: float, present: float, limit: float) -> float:
    """Log of the next B over the present one."""
    if not (wanted > 0 and present > 0):
        return 0.0
    largest = min(limit, LARGEST_GROWTH)
    return min(max(math.log(wanted / present), -largest), largest)


def lateness_of(planned: Whole, wishes: Array, growth: float) -> Array:
    """Log of the present sizes over `wishes`, which are for a B that has grown by `growth`; (workers,)."""
    return np.asarray(np.log(_at_least(planned) / _at_least(wishes)) + growth)


def next_sizes(
    planned: Whole, low: Whole, high: Whole, moves: Array, moving: Mask, limit: float, draws: Array
) -> Whole:
    """The next sizes, (workers,): whole numbers within the bounds.

    Args:
        moves: log of the next size over the present one.
        moving: who moves at all; the others stay as far as their bounds allow.
        limit: the largest move.
        draws: from [0, 1), for rounding.
    """
    present, limit = _at_least(planned), min(limit, LARGEST_LOG)
    whole = np.floor(present * np.exp(np.clip(moves, -limit, limit)) + draws)
    largest = np.maximum(np.floor(present * math.expm1(limit)), 1)  # rounding must not exceed the limit
    whole = np.clip(whole, planned - largest, planned + largest)
    return np.clip(np.where(moving, whole, planned), low, high).astype(np.int64)


def is_outside(planned: Whole, undamped: Array, settings: StigmergySettings) -> Mask:
    """Who would move by enough, (workers,). `undamped`: log of the size that it would like over the present one."""
    samples = np.abs(_at_least(planned) * np.expm1(np.minimum(undamped, LARGEST_LOG)))
    return np.asarray((np.abs(undamped) > settings.dead_band) & (samples > SMALLEST_STEP))


def draws_of(seed: int, window: int, ranks: Iterable[int], n_workers: int) -> Array:
    """One number from [0, 1) for each of `ranks`, which depends on nothing else; (n_workers,), 0 elsewhere."""
    draws = np.zeros(n_workers)
    for rank in ranks:
        draws[rank] = np.random.default_rng((seed, window, rank)).random()
    return draws


def _at_least(sizes: Whole | Array) -> Array:
    """Sizes of which a log can be taken: a worker without samples is half a sample away from one."""
    return np.maximum(np.asarray(sizes, dtype=np.float64), 0.5)
