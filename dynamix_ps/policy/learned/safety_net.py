"""The safety net under a learned policy: when it does worse than proportional shares would, they take over for a while.

    measured   goodput of the window that ran under the policy's plan: progress per second (efficiency.py)
    reference  the same of the initial global batch B0, split so that all finish together, at the speeds that the
               policy's model of the cluster has, and the network time measured until now (network_times.py)

`worse_windows` windows in a row below (1 - margin) * reference: proportional shares of B0 for `rest_windows` windows,
then the policy decides again and is judged anew. Only windows that ran under what the policy asked for are judged.
An answer that is no sizes at all counts as the last of those windows. Guards besides: sizes stay within their bounds,
and a worker whose memory is nearly full does not grow. Where the noise scale is not known, different B cannot be
compared, and the reference is the present B; so it is where training ends with larger batches (late_batch.py).
All chosen by us.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from dynamix_ps.apportion import largest_change
from dynamix_ps.config.schema import Safety
from dynamix_ps.policy.base import Decision, Learner, Policy, View
from dynamix_ps.policy.baselines.proportional import DEAD_BAND
from dynamix_ps.policy.cluster_model.efficiency import finishing, goodput
from dynamix_ps.policy.cluster_model.model import ClusterModel
from dynamix_ps.policy.cluster_model.network_times import StepTimes
from dynamix_ps.policy.window_arrays import WindowArrays


class ModelPolicy(Policy, Protocol):
    """A policy that lets its model of the cluster observe every clean window."""

    model: ClusterModel


class SafetyNet:
    """A policy, watched. Learns if the one inside does, also while it rests."""

    def __init__(self, policy: ModelPolicy, safety: Safety) -> None:
        self.name = policy.name
        self._policy = policy
        self._model = policy.model
        self._safety = safety
        self._times = StepTimes()
        self._asked: tuple[int, ...] | None = None  # by the policy, for the plan in force
        self._worse = 0
        self._rest = 0

    def decide(self, view: View) -> Decision:
        """The policy's answer, or proportional shares in its place."""
        answer = self._policy.decide(view)
        if not view.clean:
            return Decision(view.plan.batch_sizes, answer.reward, fallback=self._rest > 0)
        asked, self._asked = self._asked, None
        self._times.observe(self._model)
        self._rest = max(self._rest - 1, 0)
        if self._rest:
            return self._proportional_shares(view, answer)
        if asked == view.plan.batch_sizes:
            self._worse = self._worse + 1 if self._shortfall() > self._safety.margin else 0
        nonsense = len(answer.batch_sizes) != len(view.bounds) or not all(map(math.isfinite, answer.batch_sizes))
        if nonsense or self._worse >= self._safety.worse_windows:
            why = "its answer was no sizes" if nonsense else f"its goodput was below theirs for {self._worse} windows"
            self._worse, self._rest = 0, self._safety.rest_windows
            return self._proportional_shares(view, answer, f"proportional shares for {self._rest} windows: {why}")
        self._asked = _guarded(answer.batch_sizes, self._model.window)
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

    def _proportional_shares(self, view: View, answer: Decision, note: str = "") -> Decision:
        """B0 by measured speeds, or the present sizes where those differ by no more than the dead-band."""
        sizes, model = view.plan.batch_sizes, self._model
        if model.compute.known.any():
            wanted = tuple(model.shares(int(model.window.reference_batch)).tolist())
            sizes = wanted if largest_change(sizes, wanted) > DEAD_BAND else sizes
        return Decision(sizes, answer.reward, note, fallback=True)

    def _shortfall(self) -> float:
        """Part of the reference goodput that this window lacked; NaN if it cannot be told."""
        model, window = self._model, self._model.window
        step_s = self._times.step_s
        if not model.compute.known.any() or not step_s > 0:
            return math.nan
        present, noise_scale = int(window.global_batch), model.noise.estimated
        ends = bool(finishing(window))
        reference = present if math.isnan(noise_scale) or ends else int(window.reference_batch)
        times_s = (step_s, float(self._times.iteration_s(model.balanced_s(reference))))
        measured, would_be = goodput(window, (present, reference), times_s, noise_scale)
        return float(1 - measured / would_be)


def _guarded(sizes: tuple[int, ...], window: WindowArrays) -> tuple[int, ...]:
    """Within bounds, and not grown where memory is nearly full."""
    workers = zip(sizes, *(part.tolist() for part in (window.low, window.high, window.planned, window.memory_full)),
                  strict=True)  # fmt: skip
    return tuple(
        round(min(max(min(size, planned) if full else size, low), high)) for size, low, high, planned, full in workers
    )
