"""From a closed window to the factor of the next plan: the policy's step or the rule's, within the limits. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dynamix_ps.messages import WindowRecord
from dynamix_ps.policy.base import View
from dynamix_ps.policy.rate.decay import decayed
from dynamix_ps.policy.rate.limits import RateLimits, nearest, stepped
from dynamix_ps.rpc.plan_rules import wrong_lr_factor


class RateDecider:
    """Decides on the factor of one run whose cluster file says `lr: decide`; elsewhere it stays 1.

    Args:
        resumed: whether training has begun before.
    """

    def __init__(self, resumed: bool = False) -> None:
        self._limits = RateLimits(resumed)

    def observe(self, records: Sequence[WindowRecord | None]) -> tuple[float, ...]:
        """Take in a closed window; returns the steps that the next plan may make (limits.py)."""
        first = _first(records)
        if first is None or math.isnan(first.lr_decided):
            return (1.0,)
        self._limits.observe(first.first_iteration, first.first_iteration + first.iterations, first.lr_decided)
        present, allowed = _of_plan(first), self._limits.allowed()
        return tuple(step for step in allowed if step == 1 or not wrong_lr_factor(stepped(present, step)))

    def factor(self, view: View, step: float | None) -> float:
        """The factor of the next plan, on the script's learning rate without what the guard leaves.

        Args:
            step: what the policy asks for; none: the rule decides. The nearest allowed one counts.
        """
        first = _first(view.records)
        if first is None or not view.clean or math.isnan(first.lr_decided):
            return view.plan.lr_factor
        present = _of_plan(first)
        wanted = decayed(first.trained_ratio, first.lr_ratio) / present if step is None else step
        return stepped(present, nearest(wanted, view.lr_steps))


def _of_plan(record: WindowRecord) -> float:
    """The plan's part of the factor that was in force."""
    return record.lr_decided / record.lr_guard


def _first(records: Sequence[WindowRecord | None]) -> WindowRecord | None:
    """What holds for all workers is in any record."""
    return next((record for record in records if record is not None), None)
