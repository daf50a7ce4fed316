"""What batch sizes are worth where losses are means over other units than the plan's, such as tokens. Pure.

The script gives the number w_i of units with every loss: `run.backward(loss, weight=w_i)`; otherwise w_i is its number
of samples. The global gradient is sum(w_i g_i) / W with W = sum(w_i). Policies, noise scale and learning-rate rules
speak of the plan's unit, samples or tokens of the data. There worker i counts as w_i / u, and B is W / u, where u is
the mean number of units in one of the plan's so far, over all workers. Every worker computes the same.
"""

from __future__ import annotations

import math

from dynamix_ps.errors import TrainingError
from worker_hooks.exchange.agreement import name_workers
from worker_hooks.exchange.trailer import GlobalView

INVALID = -1.0  # in the trailer: the script gave something else than a number of units
Seen = tuple[float, int]  # units, and the sizes that had them


class SizeWorth:
    """Turns the units of one training into the plan's."""

    def __init__(self, seen: Seen = (0.0, 0)) -> None:
        """`seen`: in the run that this one resumes."""
        self.seen = seen

    def sizes(self, view: GlobalView, spent: tuple[int, ...]) -> tuple[float, ...]:
        """What the part of every worker in this sum is worth, in the plan's unit. `spent`: sizes in that unit."""
        weights = view.units if any(view.units) else view.worker_samples
        if weights == spent:
            return spent
        units, size = self.seen
        self.seen = (units + sum(weights), size + sum(spent))
        mean = self.seen[0] / self.seen[1]
        return tuple(one / mean for one in weights)


def units_or_invalid(number: float) -> float:
    """What travels for the number that the script gave."""
    return number if 0 <= number < math.inf else INVALID


def weight_before_sum(units: float, global_samples: int, workers: int) -> float:
    """What a worker multiplies its gradients by before W is known: w_i / B; 1 for a worker alone, as w_i is W."""
    if workers == 1:
        return 1.0 if units > 0 else 0.0
    return max(units, 0.0) / global_samples


def factor_after_sum(view: GlobalView, global_samples: int, iteration: int) -> float:
    """What makes the sum of such gradients a mean over all units: B / W; 1 for a worker alone.

    Raises TrainingError, the same on all workers, if a worker gave no number of units, or if there is no unit at all.
    """
    if wrong := [rank for rank, units in enumerate(view.units) if units < 0]:
        raise TrainingError(
            f"weight= of run.backward() is no number from 0 on in iteration {iteration} on {name_workers(wrong)}; no "
            "step was made with it: give the number of tokens, or other units, that the loss is the mean over"
        )
    total = sum(view.units)
    if not 0 < total < math.inf:
        raise TrainingError(
            f"weight= of run.backward() adds up to {total:g} over all workers in iteration {iteration}, so their loss "
            "is a mean over nothing; no step was made with it: leave samples without units out of the data set"
        )
    return 1.0 if len(view.units) == 1 else global_samples / total
