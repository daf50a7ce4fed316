"""A policy whose proposals pass only with evidence. Pure.

    clean windows of one plan, together a second or more    joined_windows.py   -> the policy inside decides
    shares of the global batch differ from the present ones by more than scatter    claims.py    -> they change
    the global batch differs from the present one by more than scatter              claims.py    -> it changes
    a plan has made training slower                                                 trial.py     -> it is taken back

Before the first change of sizes the policy decides sooner if a short window shows a difference that is beyond all
scatter: at a ratio of speeds of 4, a quarter of a second does. After sizes have come back, proposals rest, twice as
long each time, unless a worker's speed jumps. A policy that explores needs no evidence for what it tries out. All of
this is chosen by us.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from dynamix_ps.apportion import split
from dynamix_ps.policy.base import Decision, Policy, View
from dynamix_ps.policy.cluster_model.compute_times import JUMP, ComputeMeter, ComputeTimes
from dynamix_ps.policy.cluster_model.model import ModelPolicy
from dynamix_ps.policy.evidence.claims import SURE, Claims
from dynamix_ps.policy.evidence.joined_windows import ENOUGH_S, JoinedWindows, trained_s
from dynamix_ps.policy.evidence.scatter import Scatter, assumed
from dynamix_ps.policy.evidence.trial import Sizes, Trial
from dynamix_ps.policy.inner_learner import InnerLearner
from dynamix_ps.policy.window_arrays import Array, arrays_of

FIRST_REST, LONGEST_REST = 4, 32  # joined windows without a new plan, after sizes have come back


class WeighedPolicy(InnerLearner):
    """Decides when there is enough evidence, and keeps the plan otherwise."""

    def __init__(self, policy: Policy, n_workers: int, explores: bool = False) -> None:
        """`explores`: the policy tries out sizes that nothing speaks for yet."""
        super().__init__(policy)
        self._explores = explores
        self._joining = JoinedWindows()
        self._meter, self._lines = ComputeMeter(n_workers), ComputeTimes(n_workers)
        self._scatter = Scatter()  # of the workers' computing times, relative to each other
        self._trial = Trial()
        self._claims = Claims()
        self._first_sizes: Sizes | None = None  # while they have not changed
        self._planned: Sizes = ()  # in the last joined window
        self._asked: Sizes = ()  # in the last answer
        self._rest, self._next_rest = 0, FIRST_REST
        self._fallback = False

    def decide(self, view: View) -> Decision:
        """The policy's sizes as far as there is evidence for them; the present ones while windows are being joined."""
        if not view.clean:
            return self.inner.decide(view)
        sizes = view.plan.batch_sizes
        if self._first_sizes is None:
            self._first_sizes = sizes
        self._joining.add(view)
        enough = self._joining.duration_s >= ENOUGH_S
        if not enough and not (sizes == self._first_sizes and self._obvious()):
            return Decision(sizes, fallback=self._fallback)
        joined = self._joining.take()
        if sizes != self._first_sizes:
            self._first_sizes = ()
        duration_s = trained_s(joined)
        jumped = self._measure(joined, duration_s, enough)
        answer = self.inner.decide(joined)
        self._fallback = answer.fallback
        if jumped:
            self._rest, self._next_rest = 0, FIRST_REST
        if (before := self._trial.worse_than(duration_s, lambda other: self._rate_with(joined, other))) is not None:
            self._rest, self._next_rest = self._next_rest, min(2 * self._next_rest, LONGEST_REST)
            rate = _samples(joined) / duration_s
            note = (
                f"{_shown(before.sizes)} come back: {math.exp(before.log_rate):,.0f} samples/s, {rate:,.0f} since then"
            )
            return self._answer(replace(answer, batch_sizes=before.sizes, note=answer.note or note))
        if self._rest:
            self._rest -= 1
            return self._answer(replace(answer, batch_sizes=sizes))
        return self._answer(replace(answer, batch_sizes=self._with_evidence(joined, answer.batch_sizes, duration_s)))

    def _answer(self, decision: Decision) -> Decision:
        self._asked = decision.batch_sizes
        return decision

    def _obvious(self) -> bool:
        """Whether workers that have not had another plan yet differ by more than a short window can err."""
        lateness = _relative(self._times_s(self._joining.joined())[1])
        return bool((np.abs(lateness) > SURE * assumed(self._joining.duration_s)).any())

    def _times_s(self, view: View) -> tuple[Array, Array]:
        """Samples and computing seconds per iteration of every worker; NaN where not measured."""
        return self._meter.per_iteration(arrays_of(view))

    def _measure(self, joined: View, duration_s: float, enough: bool) -> bool:
        """Take in a joined window. Returns whether a worker's speed has jumped."""
        planned = joined.plan.batch_sizes
        if planned != self._planned:
            self._claims.restart()
            self._scatter.restart()
        on_trial = planned == self._asked
        self._planned = planned
        window = arrays_of(joined)
        if not window.all_there:  # another machine may compute there later
            self._meter.forget(~window.there)
            self._lines.forget(~window.there)
        sizes, times_s = self._meter.per_iteration(window)
        self._lines.observe(sizes, times_s)
        if not enough:
            return False
        self._trial.see(planned, _samples(joined) / duration_s, on_trial)
        change = self._scatter.see(_relative(times_s))
        surprising = np.maximum(SURE * math.sqrt(2) * self._scatter.deviation(assumed(duration_s)), JUMP)
        return bool((np.abs(change) > surprising).any())

    def _rate_with(self, joined: View, sizes: Sizes) -> float:
        """Samples per second with other sizes: computing takes as long as its lines say, the rest as long as now."""
        now_s = self._lines.now.seconds(joined.plan.batch_sizes)
        then_s = self._lines.now.seconds(sizes)
        known = np.isfinite(now_s) & np.isfinite(then_s)
        if not known.any():
            return math.nan
        iteration_s = trained_s(joined) / joined.reported[0].iterations
        return sum(sizes) / max(iteration_s - float(now_s[known].max()) + float(then_s[known].max()), 1e-9)

    def _with_evidence(self, joined: View, wanted: Sizes, duration_s: float) -> Sizes:
        """`wanted`, as far as there is evidence for its shares and for its global batch."""
        planned = joined.plan.batch_sizes
        same_workers = [bool(size) for size in wanted] == [bool(size) for size in planned]
        if self._explores or not same_workers or not all(map(math.isfinite, wanted)):  # the guard looks at these
            return wanted
        counts = self._claims.see(planned, wanted, self._scatter.deviation(assumed(duration_s)))
        model = self.inner.model if isinstance(self.inner, ModelPolicy) else None
        batch_counts = counts.batch if model else counts.shares  # without a model, B follows from the shares
        if counts.shares == batch_counts:
            return wanted if counts.shares else planned
        shares, total = (wanted if counts.shares else planned), round(sum(wanted if batch_counts else planned))
        low, high = np.array(joined.bounds).T
        inside = np.asarray(min(max(total, int(low.sum())), int(high.sum())))
        sizes = split(inside, np.asarray(shares, dtype=np.float64), low, high)
        return tuple((model.filled(sizes) if model else sizes).tolist())


def _samples(view: View) -> int:
    return sum(record.samples for record in view.reported)


def _relative(times_s: Array) -> Array:
    """Logarithms of times over their geometric mean: what a machine that serves all workers does to all is left out."""
    logs = np.log(times_s)
    known = np.isfinite(logs)
    return logs - (logs[known].mean() if known.any() else 0.0)


def _shown(sizes: Sizes) -> str:
    return "/".join(map(str, sizes))
