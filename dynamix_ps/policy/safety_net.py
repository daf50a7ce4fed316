"""The safety net of a policy: proportional shares replace it for a while if it does worse than they would.

    measured   goodput of the window that ran under the policy's plan: progress per second (efficiency.py)
    reference  goodput predicted for the initial global batch B0, split so that all workers finish together, with the
               speeds of the policy's model of the cluster and the network time measured so far (network_times.py)

After `worse_windows` windows in a row below (1 - margin) * reference, the net uses proportional shares of B0 for
`rest_windows` windows. Then the policy decides again and the count starts at 0. Only windows that ran under the sizes
that the policy asked for count. After an invalid answer the net takes over at once. In addition, sizes stay within
their bounds, and a worker whose memory is nearly full does not grow. If the noise scale is unknown, different B are not
comparable, and the reference is the present B; the same holds near the end of training, where batches are larger
(late_batch.py). These rules are chosen by us.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from dynamix_ps.apportion import largest_change
from dynamix_ps.config.schema import Safety
from dynamix_ps.policy.base import Decision, InnerLearner, View
from dynamix_ps.policy.baselines.steady_times import DEAD_BAND
from dynamix_ps.policy.model.cluster import HasClusterModel
from dynamix_ps.policy.model.efficiency import finishing, goodput
from dynamix_ps.policy.model.network_times import StepTimes
from dynamix_ps.policy.window_arrays import WindowArrays


class SafetyNet(InnerLearner):
    """A policy under supervision. The policy inside continues to learn while it rests."""

    def __init__(self, policy: HasClusterModel, safety: Safety) -> None:
        super().__init__(policy)
        self.model = policy.model
        self._safety = safety
        self._times = StepTimes()
        self._asked: tuple[int, ...] | None = None  # sizes that the policy asked for in the plan in force
        self._worse = 0
        self._rest = 0

    def decide(self, view: View) -> Decision:
        """The policy's sizes, or proportional shares instead."""
        answer = self.inner.decide(view)
        if not view.clean:
            return replace(answer, batch_sizes=view.plan.batch_sizes, note="", fallback=self._rest > 0)
        asked, self._asked = self._asked, None
        self._times.observe(self.model)
        self._rest = max(self._rest - 1, 0)
        if self._rest:
            return self._proportional_shares(view, answer)
        if asked == view.plan.batch_sizes:
            self._worse = self._worse + 1 if self._shortfall() > self._safety.margin else 0
        invalid = len(answer.batch_sizes) != len(view.bounds) or not all(map(math.isfinite, answer.batch_sizes))
        if invalid or self._worse >= self._safety.worse_windows:
            worse = f"its goodput was below theirs for {self._worse} windows"
            why = "its answer was not one finite size per worker" if invalid else worse
            self._worse, self._rest = 0, self._safety.rest_windows
            return self._proportional_shares(view, answer, f"proportional shares for {self._rest} windows: {why}")
        self._asked = _guarded(answer.batch_sizes, self.model.window)
        return replace(answer, batch_sizes=self._asked)

    def _proportional_shares(self, view: View, answer: Decision, note: str = "") -> Decision:
        """B0 split by measured speeds, or the present sizes if they differ from it by no more than the dead-band."""
        sizes, model = view.plan.batch_sizes, self.model
        if model.compute.known.any():
            wanted = tuple(model.shares(int(model.window.reference_batch), model.compute.now).tolist())
            sizes = wanted if largest_change(sizes, wanted) > DEAD_BAND else sizes
        return replace(answer, batch_sizes=sizes, note=note, fallback=True)

    def _shortfall(self) -> float:
        """Relative difference by which this window misses the reference goodput; NaN if unknown."""
        model, window = self.model, self.model.window
        step_s = self._times.step_s
        if not model.compute.known.any() or not step_s > 0:
            return math.nan
        present, noise_scale = int(window.global_batch), model.noise.estimated
        ends = bool(finishing(window))
        reference = present if math.isnan(noise_scale) or ends else int(window.reference_batch)
        times_s = (step_s, float(self._times.iteration_s(model.balanced_s(reference, model.compute.now))))
        measured, would_be = goodput(window, (present, reference), times_s, noise_scale)
        return float(1 - measured / would_be)


def _guarded(sizes: tuple[int, ...], window: WindowArrays) -> tuple[int, ...]:
    """Sizes limited to their bounds, and not larger than now where memory is nearly full."""
    wanted = np.array(sizes, dtype=np.float64)
    if window.memory_full.any():
        wanted = np.where(window.memory_full, np.minimum(wanted, window.planned), wanted)
    inside = np.minimum(np.maximum(wanted, window.low), window.high)
    return tuple(np.rint(inside).astype(np.int64).tolist())
