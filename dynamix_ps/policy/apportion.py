"""Split a whole number by weights: the integer side of every share in this project."""

from __future__ import annotations

import math
from collections.abc import Sequence


def apportion(
    total: int,
    weights: Sequence[float],
    low: Sequence[int] | None = None,
    high: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Split `total` into whole parts proportional to `weights`, each within its own bounds.

    The parts sum to `total` exactly. What a bound takes away or adds is redistributed over the parts that are
    still free, in proportion to their weights. Fractions are rounded by largest remainder; ties go to the lower
    index, so the answer depends on the arguments alone. Weights that are all zero count as equal; where only some
    are zero, those parts stay at their lower bound unless the others cannot hold the rest.

    Args:
        total: what to split, >= 0.
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
    shares = _shares(total, _scaled(weights), lows, highs)
    parts = [min(max(math.floor(share), lows[i]), highs[i]) for i, share in enumerate(shares)]
    remainder = [share - part for share, part in zip(shares, parts, strict=True)]
    missing = total - sum(parts)
    while missing:
        step = 1 if missing > 0 else -1
        movable = [i for i in range(count) if lows[i] <= parts[i] + step <= highs[i]]
        movable.sort(key=lambda i: (-step * remainder[i], i))
        for i in movable[: abs(missing)]:
            parts[i] += step
            remainder[i] -= step
        missing = total - sum(parts)
    return tuple(parts)


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


def _scaled(weights: Sequence[float]) -> list[float]:
    """Weights divided by one power of two, which is exact, so that huge ones cannot overflow a sum."""
    largest = max(weights)
    if largest == 0:
        return [1.0] * len(weights)
    exponent = math.frexp(largest)[1]
    return [math.ldexp(weight, -exponent) for weight in weights]


def _shares(total: int, weights: list[float], lows: list[int], highs: list[int]) -> list[float]:
    """Real-valued shares within the bounds: clamp the parts that break a bound, share the rest, repeat.

    In each round only one kind of violation is frozen, the one that weighs more, because freezing it moves
    the others' shares towards their own bounds and never past them.
    """
    shares = [float(low) for low in lows]
    free = set(range(len(weights)))
    while free:
        rest = total - sum(shares[i] for i in range(len(weights)) if i not in free)
        weight_sum = math.fsum(weights[i] for i in free)
        wanted = {i: rest * weights[i] / weight_sum if weight_sum else rest / len(free) for i in free}
        below = {i for i in free if wanted[i] < lows[i]}
        above = {i for i in free if wanted[i] > highs[i]}
        if not below and not above:
            for i in free:
                shares[i] = wanted[i]
            return shares
        lifted = math.fsum(lows[i] - wanted[i] for i in below)
        cut = math.fsum(wanted[i] - highs[i] for i in above)
        frozen = (below if lifted >= cut else set()) | (above if cut >= lifted else set())
        for i in frozen:
            shares[i] = float(lows[i] if i in below else highs[i])
        free -= frozen
    return shares
