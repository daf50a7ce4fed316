"""Splits whole numbers by weights. All integer shares of this project use it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]
Real = NDArray[np.float64]

_SMALL = 1e-200  # sum of scaled weights below which they are scaled anew


def apportion(
    total: int,
    weights: Sequence[float],
    low: Sequence[int] | None = None,
    high: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Split `total` into whole parts proportional to `weights`, each within its own bounds.

    The parts sum to `total` exactly. If a bound limits a part, the parts without a limit share the difference in
    proportion to their weights. Fractions are rounded by largest remainder; ties go to the lower index, so the result
    depends on the arguments alone. If all weights are zero, they count as equal. If only some are zero, those parts
    stay at their lower bound unless the others cannot take the rest.

    Args:
        total: the number to split, >= 0.
        weights: one per part, finite and >= 0.
        low: smallest value of each part (default 0).
        high: largest value of each part (default `total`).

    Raises:
        ValueError: no split exists within the bounds, or an argument is malformed.
    """
    count = len(weights)
    lows = [0] * count if low is None else list(low)
    highs = [max(total, 0)] * count if high is None else list(high)
    _check(total, weights, lows, highs)
    parts = split(np.array(total), np.array(weights, dtype=np.float64), np.array(lows), np.array(highs))
    return tuple(int(part) for part in parts)


def split(total: Whole, weights: Real, low: Whole, high: Whole) -> Whole:
    """`apportion` for many splits at once: total (...,), the others (..., parts).

    Raises:
        ValueError: a weight is NaN or infinite. Nothing else is checked.
    """
    if not np.isfinite(weights).all():
        raise ValueError("split: a weight is NaN or infinite, expected finite numbers")
    shares = _shares(total, weights, low, high)
    parts = np.minimum(np.maximum(np.floor(shares), low), high).astype(np.int64)
    remainder = shares - parts
    while (missing := total - parts.sum(axis=-1)).any():
        step = np.sign(missing)[..., None]
        stepped = parts + step
        movable = (stepped >= low) & (stepped <= high) & (step != 0)
        order = np.where(movable, -step * remainder, np.inf).argsort(axis=-1, kind="stable")
        turn = order.argsort(axis=-1, kind="stable")  # rank of each part in this order, from 0
        moved = step * (movable & (turn < np.abs(missing)[..., None]))
        parts += moved
        remainder -= moved
    return parts


def _check(total: int, weights: Sequence[float], lows: list[int], highs: list[int]) -> None:
    if not weights:
        raise ValueError("apportion: got no weights, expected at least one")
    if len(lows) != len(weights) or len(highs) != len(weights):
        raise ValueError(f"apportion: {len(weights)} weights but {len(lows)} lower and {len(highs)} upper bounds")
    for i, weight in enumerate(weights):
        if not math.isfinite(weight) or weight < 0:
            raise ValueError(f"apportion: weight {i} is {weight!r}, expected a finite number >= 0")
    for i, (low, high) in enumerate(zip(lows, highs, strict=True)):
        if not 0 <= low <= high:
            raise ValueError(f"apportion: bounds of part {i} are [{low}, {high}], expected 0 <= low <= high")
    if not sum(lows) <= total <= sum(highs):
        raise ValueError(f"apportion: total {total} is outside [{sum(lows)}, {sum(highs)}], the sums of the bounds")


def _scaled(weights: Real) -> Real:
    """Weights divided by a power of two per row, which is exact: large weights then cannot overflow the sum."""
    largest = weights.max(axis=-1, keepdims=True)
    return np.where(largest == 0, 1.0, np.ldexp(weights, -np.frexp(largest)[1]))


def _shares(total: Whole, weights: Real, low: Whole, high: Whole) -> Real:
    """Real-valued shares within the bounds: fix the parts that exceed a bound at that bound, share the rest, repeat.

    Each round fixes only one kind of violation, the one with the larger sum: that moves the other shares towards their
    bounds, but never past them.
    """
    shares: Real | float = 0.0  # of parts that are fixed, 0 elsewhere
    free: NDArray[np.bool_] | bool = True
    rest, weighing = np.asarray(total, dtype=np.float64)[..., None], _scaled(weights)
    while True:
        weight_sum = weighing.sum(axis=-1, keepdims=True)
        if (weight_sum > _SMALL).all():
            wanted = rest * weighing / weight_sum
        else:
            weighing = np.where(free, _scaled(np.where(free, weights, 0.0)), 0.0)
            weight_sum = weighing.sum(axis=-1, keepdims=True)
            some = weight_sum > 0  # a part is free
            wanted = np.where(some, rest * weighing / np.where(some, weight_sum, 1.0), rest)
        below, above = free & (wanted < low), free & (wanted > high)
        few, many = below.any(), above.any()
        if not (few or many):
            return np.where(free, wanted, shares)
        if few and many:
            lifted = np.where(below, low - wanted, 0.0).sum(axis=-1, keepdims=True)
            cut = np.where(above, wanted - high, 0.0).sum(axis=-1, keepdims=True)
            below, above = below & (lifted >= cut), above & (cut >= lifted)
        shares = np.where(below, low, np.where(above, high, shares))
        free = free & ~(below | above)
        rest = (total - shares.sum(axis=-1))[..., None]
        weighing = np.where(free, weighing, 0.0)


def largest_change(now: tuple[int, ...], wanted: tuple[int, ...]) -> float:
    """Largest relative change of any worker's size."""
    return max(abs(new - old) / max(old, 1) for old, new in zip(now, wanted, strict=True))
