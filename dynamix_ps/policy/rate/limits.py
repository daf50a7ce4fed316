"""Which factors on the script's learning rate the next plan may have. Pure.

    step          1/2, 1/sqrt 2, 1, sqrt 2 or 2, at most one in 40 iterations
    factor        1/8 to 8; counted with what the guard of the workers leaves of the plan's factor
    upwards       at most twice the smallest factor of the last 100 iterations

A rate that is too high does its harm within tens of iterations, so the way up is slower than the way down. All values
are chosen by us.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from dynamix_ps.rpc.plan_rules import LARGEST_LR_FACTOR, SMALLEST_LR_FACTOR

STEPS = (0.5, math.sqrt(0.5), 1.0, math.sqrt(2.0), 2.0)
LEAST_ITERATIONS = 40  # between two changes
RISE_ITERATIONS = 100  # in which the factor at most doubles
LARGEST_RISE = 2.0
_ROUNDING = 1e-6  # relative


class _Span(NamedTuple):
    """Iterations that ran with one factor."""

    first: int
    end: int
    factor: float


class RateLimits:
    """Remembers which factors were in force.

    Args:
        resumed: whether training has begun before the first window that is observed. Then the factor does not rise
            until as many iterations are known as count for a rise.
    """

    def __init__(self, resumed: bool = False) -> None:
        self._resumed = resumed
        self._known_from: int | None = None
        self._spans: deque[_Span] = deque()

    def observe(self, first: int, end: int, factor: float) -> None:
        """Iterations `first` to `end` - 1 ran with this factor: that of the plan times what the guard left."""
        if self._known_from is None:
            self._known_from = first
        if self._spans and math.isclose(self._spans[-1].factor, factor, rel_tol=_ROUNDING):
            first = self._spans.pop().first
        self._spans.append(_Span(first, end, factor))
        while self._spans[0].end <= end - RISE_ITERATIONS:
            self._spans.popleft()

    def allowed(self) -> tuple[float, ...]:
        """Those of STEPS that the factor in force may be multiplied by now; 1 is always one of them."""
        if not self._spans:
            return (1.0,)
        first, end, factor = self._spans[-1]
        if end - first < LEAST_ITERATIONS:
            return (1.0,)
        assert self._known_from is not None
        knows = not self._resumed or end - self._known_from >= RISE_ITERATIONS
        highest = LARGEST_RISE * min(span.factor for span in self._spans) if knows else factor
        lowest, highest = SMALLEST_LR_FACTOR, min(max(highest, factor), LARGEST_LR_FACTOR)
        within = (step for step in STEPS if lowest <= factor * step * (1 + _ROUNDING))
        return tuple(step for step in within if factor * step <= highest * (1 + _ROUNDING) or step <= 1)


def stepped(factor: float, step: float) -> float:
    """`factor` times one of STEPS, exactly a power of the root of 2: factors do not drift by rounding."""
    return float(2.0 ** (round(2 * math.log2(factor * step)) / 2))


def nearest(wanted: float, allowed: tuple[float, ...]) -> float:
    """The allowed step that is nearest to `wanted` on a logarithmic scale; 1 if that is no positive number."""
    if not (math.isfinite(wanted) and wanted > 0):
        return 1.0
    return min(allowed, key=lambda step: abs(math.log(step / wanted)))
