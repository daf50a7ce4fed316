"""One rate of a race, in the process that tries it: a factor on the script's learning rate for a few iterations.

    iterations 0 ... TRAINED - 1       steps with the factor
    the last third of these            weights are averaged: at a high rate they swing around what they have learned
    the first step after these         makes the averages the weights; from here on the rate is 0
    JUDGED iterations after that       the losses of the script's own loop are those of averaged weights, on samples
                                       that no rate of the race has trained
the first step after their records     the process ends, before the script comes to its own end

Hooks of torch around every step of every optimizer do that, outside of the hooks of the run: whatever else changes the
rate goes on as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from dynamix_ps.rehearsal.rate_race import AVERAGED_FROM, JUDGED, TRAINED

EVENT = "rate_trial"  # in the record of the run, with the script's own rate: at the first step, and after TRAINED
RECORDED = 2  # iterations after an iteration, its record is complete


class RateTrial:
    """Changes the steps of all optimizers of this process from `install` on."""

    def __init__(
        self, factor: float, iterations: Callable[[], int], tell: Callable[..., None], end: Callable[[], None]
    ) -> None:
        """`iterations`: complete ones so far. `tell` records an event, `end` ends the process."""
        self._factor, self._iterations, self._tell, self._end = factor, iterations, tell, end
        self._seen = -1  # iteration of the newest step
        self._over_at: int | None = None  # iteration
        self._weights: dict[torch.Tensor, None] = {}
        self._means: dict[torch.Tensor, torch.Tensor] = {}
        self._averaged = 0
        self._rates: dict[torch.optim.Optimizer, list[Any]] = {}  # of the script, during a step

    def install(self) -> list[Any]:
        """From the next step on. Returns the handles, to remove the hooks."""
        return [register_optimizer_step_pre_hook(self._before), register_optimizer_step_post_hook(self._after)]

    def _before(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        groups, iteration = optimizer.param_groups, self._iterations()
        if self._over_at is not None and iteration >= self._over_at + JUDGED + RECORDED:
            self._end()
        if iteration > self._seen and self._over_at is None:
            self._begin(iteration, float(groups[0]["lr"]))
        self._weights.update(dict.fromkeys(weight for group in groups for weight in group["params"]))
        self._rates[optimizer] = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] = group["lr"] * (self._factor if self._over_at is None else 0.0)

    def _after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group, rate in zip(optimizer.param_groups, self._rates.pop(optimizer), strict=True):
            group["lr"] = rate

    @torch.no_grad()
    def _begin(self, iteration: int, rate: float) -> None:
        """The first step of an iteration: the weights are still those of the one before."""
        is_first, self._seen = self._seen < 0, iteration
        if iteration > AVERAGED_FROM:
            self._averaged += 1
            for weight in self._weights:
                mean = self._means.setdefault(weight, weight.detach().clone())
                mean.lerp_(weight.detach(), 1 / self._averaged)
        if iteration >= TRAINED:
            self._over_at = iteration
            for weight, mean in self._means.items():
                weight.copy_(mean)
        if is_first or self._over_at is not None:
            self._tell(EVENT, iteration=iteration, rate=rate)
