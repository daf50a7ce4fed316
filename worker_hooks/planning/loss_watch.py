"""Whether the loss rises beyond its noise. Pure.

At once, if it is far above its level:

    c_t = max(0, c_(t-1) + min(z_t, 5) - 1) > 10          z_t = (l_t - m_t) / s_t

Or after a while, if it does not come back to what it had reached:

    lowest of the newest 40 M_t > lowest of the 360 before + 3 s_t          M_t: median of the newest 5 losses

l_t is the loss of iteration t, m_t the median of the newest 40 losses, and s_t the noise of one loss:
s_t^2 = v / B_t + (0.02 m_t)^2. v is the variance of the loss of one sample, from the median of the newest 40
|l_t - l_(t-1)| / sqrt(1/B_t + 1/B_(t-1)), which neither a falling loss nor a few large ones change much.

c is the cumulative sum of Page (Biometrika, 1954): three iterations far above the level are enough, and ten at two
standard deviations. Early in training, networks at a good rate lose for ten or twenty iterations what they learned,
and find it again; so the second rule waits. A network that has died does not come back, though its loss may be no
higher than at the start. All constants are chosen by us.

The losses come from sums over all workers, so every worker finds the same.
"""

from __future__ import annotations

import copy
import itertools
import math
import statistics
from collections import deque

BLOCK = 40  # iterations
_REMEMBERED = 10 * BLOCK
_SMOOTHED = 5  # losses
_LARGEST_Z = 5.0
_SLACK = 1.0
_LIMIT = 10.0
_CALM = 2.0
_LOST = 3.0  # standard deviations
_LEAST_NOISE = 0.02  # of the level; a rise by less harms nobody
_FIRST_NOISE = 0.3  # of the first loss, until differences are known
_FIRST_WEIGHT = 10  # differences that it counts as
_MEDIAN = 0.6745  # of the absolute values of a normal distribution, in standard deviations


class LossWatch:
    """Sees the loss of every iteration."""

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=BLOCK)
        self._smooth: deque[float] = deque(maxlen=_REMEMBERED)  # M
        self._differences: deque[float] = deque(maxlen=BLOCK)  # of the loss of one sample, in standard deviations
        self._last_batch = math.nan
        self._excess = 0.0  # c
        self.level = math.nan  # m
        self._noise = math.nan  # s

    def rises(self, loss: float, batch: float) -> bool:
        """Take in the loss, a finite number, of an iteration with global batch `batch`: whether it rises."""
        if self._losses:
            difference = abs(loss - self._losses[-1])
            self._differences.append(difference / math.sqrt(1 / batch + 1 / self._last_batch))
        else:
            self._differences.extend([_MEDIAN * _FIRST_NOISE * abs(loss) * math.sqrt(batch)] * _FIRST_WEIGHT)
        self._last_batch = batch
        self._losses.append(loss)
        newest = list(self._losses)[-_SMOOTHED:]
        self._smooth.append(statistics.median(newest))
        self.level = statistics.median(self._losses)
        of_sample = statistics.median(self._differences) / _MEDIAN
        self._noise = math.hypot(of_sample / math.sqrt(batch), _LEAST_NOISE * self.level)
        above = (loss - self.level) / self._noise if self._noise else 0.0
        self._excess = max(0.0, self._excess + min(above, _LARGEST_Z) - _SLACK)
        return self._excess > _LIMIT or self._has_lost()

    def _has_lost(self) -> bool:
        """Whether the loss does not come back to what it had reached."""
        before = len(self._smooth) - BLOCK
        if before <= 0:
            return False
        reached = min(itertools.islice(self._smooth, before))
        return min(itertools.islice(self._smooth, before, None)) > reached + _LOST * self._noise

    @property
    def is_sound(self) -> bool:
        """Whether the newest losses are about as low as they ever were: a state worth going back to."""
        if not self._smooth:
            return True
        return self._excess < _CALM and self._smooth[-1] <= min(self._smooth) + self._noise

    def forgive(self) -> None:
        """The rise so far counts no more."""
        self._excess = 0.0
        self._smooth.clear()

    def copy(self) -> LossWatch:
        """A copy that does not change with this one."""
        return copy.deepcopy(self)
