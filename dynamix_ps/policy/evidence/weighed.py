"""A policy whose proposals pass only with evidence. Pure.

    clean windows with the same sizes, together a second or more       measurements.py     the policy inside decides
    its shares differ from the present ones by more than scatter       claims.py           the shares change
    its global batch differs from the present one by more than that    claims.py           the global batch changes
    the new sizes have made training slower                            trial.py            the sizes before come back

While the first sizes are in force the policy decides sooner if the two newest windows both show a difference beyond all
scatter: at a ratio of speeds of 4, windows of a quarter of a second do. A global batch below the first one is not tried
if it would be slower than the first sizes. After sizes have come back, proposals rest, twice as long each time, unless
a worker's speed jumps, or the sizes that came back are no faster. A policy that explores needs no evidence for what it
tries out. All of this is chosen by us.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dynamix_ps.apportion import split
from dynamix_ps.policy.base import Decision, InnerLearner, Policy, View
from dynamix_ps.policy.evidence.claims import Claims
from dynamix_ps.policy.evidence.measurements import ENOUGH_S, ComputeSpeeds, JoinedWindows, trained_s
from dynamix_ps.policy.evidence.trial import Sizes, Trial
from dynamix_ps.policy.model.cluster import HasClusterModel
from dynamix_ps.policy.window_arrays import Array

OBVIOUS = 2.5  # assumed standard deviations, in two windows in a row
FIRST_REST, LONGEST_REST = 4, 32  # joined windows without a new plan, after sizes have come back


class WeighedPolicy(InnerLearner):
    """Decides when there is enough evidence, and keeps the plan otherwise."""

    def __init__(self, policy: Policy, n_workers: int, explores: bool = False) -> None:
        """`explores`: the policy tries out sizes that nothing speaks for yet."""
        super().__init__(policy)
        self._explores = explores
        self._joining = JoinedWindows()
        self._speeds = ComputeSpeeds(n_workers)
        self._claims = Claims()
        self._trial: Trial | None = None
        self._lateness: Array = np.zeros(n_workers)  # in the newest window with the first sizes
        self._planned: Sizes = ()  # in the last joined window
        self._answer: Decision | None = None  # the last one
        self._rest, self._next_rest = 0, FIRST_REST

    def decide(self, view: View) -> Decision:
        """The policy's sizes as far as there is evidence for them; the present ones while windows are being joined."""
        if not view.clean:
            return self.inner.decide(view)
        sizes = view.plan.batch_sizes
        trial = self._trial = self._trial or Trial(sizes)
        self._joining.add(view)
        enough = self._joining.duration_s >= ENOUGH_S
        if not enough and not (sizes == trial.first_sizes and self._obvious(view)):
            return Decision(sizes, fallback=self._answer is not None and self._answer.fallback)
        joined = self._joining.take()
        chosen = self._answer is not None and sizes == self._answer.batch_sizes
        if sizes != self._planned:
            self._claims.restart()
            self._planned = sizes
        jumped = self._speeds.observe(joined)
        if jumped:
            self._rest, self._next_rest = 0, FIRST_REST
        if enough:
            trial.see(sizes, _rate_per_s(joined), chosen, jumped)
        self._answer = self._weighed(joined, self.inner.decide(joined), trial, obvious=not enough)
        return self._answer

    def _obvious(self, view: View) -> bool:
        """Whether a worker differs from the others beyond what a short window can err, in this window and the last."""
        before, self._lateness = self._lateness, self._speeds.lateness(view)
        late, early = np.minimum(self._lateness, before), np.maximum(self._lateness, before)
        return bool((late > OBVIOUS).any() or (early < -OBVIOUS).any())

    def _weighed(self, view: View, answer: Decision, trial: Trial, obvious: bool) -> Decision:
        """The policy's answer to joined windows as far as there is evidence for it."""
        duration_s = trained_s(view)
        before = trial.worse_than(duration_s, lambda sizes: self._speeds.rate_per_s(view, sizes))
        if before is not None:
            self._rest, self._next_rest = self._next_rest, min(2 * self._next_rest, LONGEST_REST)
            rates = f"{math.exp(before.log_rate):,.0f} samples/s, {_rate_per_s(view):,.0f} since then"
            note = f"sizes {'/'.join(map(str, before.sizes))} come back: {rates}"
            return replace(answer, batch_sizes=before.sizes, note=answer.note or note)
        if self._rest and not trial.gains(duration_s):
            self._rest = 0  # the sizes that came back are no faster: something else has made training slower
        if self._rest:
            self._rest -= 1
            return replace(answer, batch_sizes=view.plan.batch_sizes)
        return replace(answer, batch_sizes=self._with_evidence(view, answer.batch_sizes, trial, obvious))

    def _with_evidence(self, view: View, wanted: Sizes, trial: Trial, obvious: bool) -> Sizes:
        """`wanted`, as far as there is evidence for its shares and for its global batch."""
        planned = view.plan.batch_sizes
        same_workers = [bool(size) for size in wanted] == [bool(size) for size in planned]
        if self._explores or not same_workers or not all(map(math.isfinite, wanted)):  # the guard looks at these
            return wanted
        counts = self._claims.see(planned, wanted, self._speeds.deviation(view))
        counts = counts._replace(shares=counts.shares or obvious)
        if not isinstance(self.inner, HasClusterModel):  # its global batch follows from its shares
            return wanted if counts.shares else planned
        shares, batch = (wanted if counts.shares else planned), (wanted if counts.batch else planned)
        sizes = wanted if shares is batch is wanted else self._split(view, shares, sum(batch), self.inner)
        if sum(sizes) < sum(planned) and trial.below_first(self._speeds.rate_per_s(view, sizes), trained_s(view)):
            sizes = self._split(view, shares, sum(planned), self.inner)
        return sizes

    def _split(self, view: View, shares: Sequence[float], total: float, policy: HasClusterModel) -> Sizes:
        """About `total` samples in these shares, within the bounds; the present sizes if they have both."""
        if (tuple(shares), total) == (view.plan.batch_sizes, sum(view.plan.batch_sizes)):
            return view.plan.batch_sizes
        low, high = np.array(view.bounds).T
        inside = np.asarray(min(max(round(total), int(low.sum())), int(high.sum())))
        sizes = policy.model.filled(split(inside, np.asarray(shares, dtype=np.float64), low, high))
        return tuple(sizes.tolist())


def _rate_per_s(view: View) -> float:
    """Samples of all workers per second of training."""
    return sum(record.samples for record in view.reported) / trained_s(view)
