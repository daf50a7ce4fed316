"""A race of learning rates: which of them to try, which one wins, and what that says of the script's rate. Pure.

Rates are the script's times a power of four. Each trains for some iterations from the same weights on the same samples
(rate_trial.py). Three rates begin, and the race goes on beyond the best of them until it has a worse one on both sides,
or LIMIT is reached. The winner is the minimum of the parabola through the best loss and the two beside it, over the
logarithm of the rate.

So short a training is best at a higher rate than a long one, which has to let noise die out (arXiv 1803.02021 shows the
same of other losses), and a small batch is best at a lower one. At FRACTION of the batch and the unchanged rate the two
cancel, so the winner is the suggestion as it is: benchmarks/results/found-rates.md has by how much it is off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

TRAINED, JUDGED = 24, 4  # iterations of each rate (chosen by us)
AVERAGED_FROM = TRAINED * 2 // 3  # iteration
FRACTION = 4  # a run of the race has the global batch of the first sizes over this
STEP = 2  # octaves from one rate to the next
LIMIT = 6  # octaves: up to a factor 64
RIGHT = 1.0  # octaves by which a rate may be off and is called right: the race is no more exact


@dataclass(frozen=True, slots=True)
class FoundRate:
    """What a race has found.

    Attributes:
        octaves: from the script's rate to the suggested one.
        at_least: the best rate is the last that was tried, so that a better one may lie beyond.
    """

    octaves: float
    at_least: bool = False

    @property
    def is_right(self) -> bool:
        """Whether the script's rate can stay."""
        return not self.at_least and abs(self.octaves) < RIGHT

    @property
    def factor(self) -> float:
        """The suggested rate over the script's."""
        return float(2.0**self.octaves)

    def sentence(self, rate: float) -> str:
        """For people. `rate`: the script's."""
        if self.is_right:
            return f"your rate of {rate:.3g} is about right"
        about, side = "at least" if self.at_least else "about", "high" if self.octaves < 0 else "low"
        times = max(self.factor, 1 / self.factor)
        return f"your rate of {rate:.3g} is {about} {times:.2g} times too {side}; {rate * self.factor:.2g} suggested"


class RateRace:
    """Losses by rate, in octaves from the script's. A loss that is not finite is that of a broken rate."""

    def __init__(self, losses: Mapping[int, float] | None = None) -> None:
        self.losses: dict[int, float] = {}
        for octave, loss in (losses or {}).items():
            self.add(octave, loss)

    def add(self, octave: int, loss: float) -> None:
        self.losses[octave] = loss if math.isfinite(loss) else math.inf

    def missing(self) -> tuple[int, ...]:
        """The rates to try next; none: the race is over."""
        if not self.losses:
            return (-STEP, 0, STEP)
        best = self._best
        return tuple(one for one in (best - STEP, best + STEP) if one not in self.losses and abs(one) <= LIMIT)

    def found(self) -> FoundRate | None:
        """The suggested rate; None: all rates are broken."""
        best = self._best
        if math.isinf(self.losses[best]):
            return None
        lower, upper = (self.losses.get(best + side, math.nan) - self.losses[best] for side in (-STEP, STEP))
        if math.isinf(lower + upper):  # a broken rate is infinitely worse: keep half a step away from it
            part = float(math.isinf(lower)) - float(math.isinf(upper))
        else:
            part = (lower - upper) / (lower + upper) if lower + upper > 0 else 0.0
        return FoundRate(best + STEP / 2 * part, at_least=abs(best) == LIMIT)

    @property
    def _best(self) -> int:
        """The lowest of those with the least loss."""
        return min(self.losses, key=lambda octave: (self.losses[octave], octave))
