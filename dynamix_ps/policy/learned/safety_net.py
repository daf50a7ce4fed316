"""The safety net under a learned policy: when it does worse than proportional shares would, they take over for a while.

    measured   goodput of the window that ran under the policy's plan: progress per second, as in goodput.py
    reference  the same of the initial global batch B0, split so that all finish together, at the speeds and the
               network time measured until now (step_times.py)

`worse_windows` windows in a row below (1 - margin) * reference: proportional shares of B0 for `rest_windows` windows,
then the policy decides again and is judged anew. Only windows that ran under what the policy asked for are judged.
An answer that is no sizes at all counts as the last of those windows. Guards besides: sizes stay within their bounds,
and a worker whose memory is nearly full does not grow. Where the noise scale is not known, different B cannot be
compared, and the reference is the present B; so it is where training ends with larger batches (finish.py). All
chosen by us.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dynamix_ps.config.schema import Safety
from dynamix_ps.metrics.noise import GradientNoise, SmoothedNoise
from dynamix_ps.policy.base import LR_RULES, Decision, Learner, Policy, View
from dynamix_ps.policy.baselines.goodput import goodput, initial_batch
from dynamix_ps.policy.baselines.proportional import DEAD_BAND, largest_change
from dynamix_ps.policy.cluster_model.compute_meter import memory_full
from dynamix_ps.policy.cluster_model.late_batch import finishing
from dynamix_ps.policy.cluster_model.step_times import StepTimes, typical_step_s


class SafetyNet:
    """A policy, watched. Learns if the one inside does, also while it rests."""

    def __init__(self, policy: Policy, n_workers: int, safety: Safety) -> None:
        self.name = policy.name
        self._policy = policy
        self._safety = safety
        self._times = StepTimes(n_workers)
        self._noise = SmoothedNoise()
        self._asked: tuple[int, ...] | None = None  # by the policy, for the plan in force
        self._worse = 0
        self._rest = 0

    def decide(self, view: View) -> Decision:
        """The policy's answer, or proportional shares in its place."""
        answer = self._policy.decide(view)
        if not view.clean:
            return Decision(view.plan.batch_sizes, answer.reward, fallback=self._rest > 0)
        asked, self._asked = self._asked, None
        self._measure(view)
        self._rest = max(self._rest - 1, 0)
        if self._rest:
            return self._proportional_shares(view, answer)
        if asked == view.plan.batch_sizes:
            self._worse = self._worse + 1 if self._shortfall(view) > self._safety.margin else 0
        nonsense = len(answer.batch_sizes) != len(view.bounds) or not all(map(math.isfinite, answer.batch_sizes))
        if nonsense or self._worse >= self._safety.worse_windows:
            why = "its answer was no sizes" if nonsense else f"its goodput was below theirs for {self._worse} windows"
            self._worse, self._rest = 0, self._safety.rest_windows
            return self._proportional_shares(view, answer, f"proportional shares for {self._rest} windows: {why}")
        self._asked = _guarded(answer.batch_sizes, view)
        return Decision(self._asked, answer.reward, answer.note)

    @property
    def update_due(self) -> bool:
        return isinstance(self._policy, Learner) and self._policy.update_due

    def begin_update(self) -> Callable[[], Any]:
        return self._learner.begin_update()

    def finish_update(self, finished: Any) -> Mapping[str, Any]:
        return self._learner.finish_update(finished)

    def save(self, file: Path) -> None:
        self._learner.save(file)

    @property
    def _learner(self) -> Learner:
        assert isinstance(self._policy, Learner)  # else no update is ever due
        return self._policy

    def _measure(self, view: View) -> None:
        first = view.reported[0]
        self._noise.update(GradientNoise(first.noise_variance, first.noise_signal), first.grad_sq_global)
        self._times.observe(view)

    def _proportional_shares(self, view: View, answer: Decision, note: str = "") -> Decision:
        """B0 by measured speeds, or the present sizes where those differ by no more than the dead-band."""
        sizes = view.plan.batch_sizes
        if self._times.compute.known.any():
            total = max(initial_batch(view) - self._unmeasured(view), 0)
            wanted = tuple(self._times.shares(total, np.array(sizes), *np.array(view.bounds).T).tolist())
            sizes = wanted if largest_change(sizes, wanted) > DEAD_BAND else sizes
        return Decision(sizes, answer.reward, note, fallback=True)

    def _shortfall(self, view: View) -> float:
        """Part of the reference goodput that this window lacked; NaN if it cannot be told."""
        step_s = typical_step_s(view.reported)
        if not self._times.compute.known.any() or not step_s > 0:
            return math.nan
        present, noise_scale = view.plan.global_batch, self._noise.value.scale
        first = view.reported[0]
        ends = bool(finishing(LR_RULES.index(view.lr_rule), first.trained_ratio, first.lr_ratio))
        reference = present if math.isnan(noise_scale) or ends else initial_batch(view)
        balanced_s = self._times.balanced_s(max(reference - self._unmeasured(view), 0), *np.array(view.bounds).T)
        would_be = goodput(view, reference, self._times.iteration_s(balanced_s), noise_scale)
        return float(1 - goodput(view, present, step_s, noise_scale) / would_be)

    def _unmeasured(self, view: View) -> int:
        """Samples per iteration of workers whose speed is not known."""
        return int(np.array(view.plan.batch_sizes)[~self._times.compute.known].sum())


def _guarded(sizes: tuple[int, ...], view: View) -> tuple[int, ...]:
    """Within bounds, and not grown where memory is nearly full."""
    full = {record.rank for record in view.reported if memory_full(record)}
    planned = view.plan.batch_sizes
    capped = (min(size, planned[rank]) if rank in full else size for rank, size in enumerate(sizes))
    return tuple(round(min(max(size, low), high)) for size, (low, high) in zip(capped, view.bounds, strict=True))
