"""Losses that are means over samples, and losses that are sums: what a worker's gradients count with. Pure.

    mean    sum(b_i g_i) / B     worker i has b_i samples, g_i is the gradient of its mean loss
    sum     sum(g_i)             g_i is the gradient of its loss, a sum over its samples, which a constant may divide

Gradients that are in a sum already, and that the script has not set to zero, are the same on all workers. Weights of
means add up to 1, so such gradients stay what they are. In a sum of sums only one worker adds them: the first one that
has samples.
"""

from __future__ import annotations

from typing import Literal

from dynamix_ps.errors import TrainingError
from worker_hooks.iteration.in_flight import IterationInFlight

Kind = Literal["mean", "sum"]


class Reduction:
    """That of the last run.backward(), which is taken for that of the next one until this is called."""

    kind: Kind = "mean"
    kept_by: int | None = None  # the worker that adds gradients of an earlier sum to the coming one, if there are some

    def weight(self, now: IterationInFlight) -> float:
        """What gradients of the present batch count with."""
        return now.weight if self.kind == "mean" else float(now.batch.samples > 0)

    def conflict(self, kind: Kind, now: IterationInFlight, has_local: bool, has_mixed: bool) -> str:
        """Why the coming sum cannot be of this kind; empty: it can.

        Args:
            has_local: gradients are there that the script has added by loss.backward().
            has_mixed: and it has added them to gradients that are in a sum already.
        """
        if not has_local:
            return ""
        if kind == "sum" and has_mixed:
            return (
                "whose gradients are added to those of the sum before; call zero_grad(set_to_none=True) after every "
                "step, or run.backward() in place of loss.backward()"
            )
        weights_are_equal = now.sum is None and len({step.sizes for step in now.steps_due}) == 1
        if kind != self.kind and not weights_are_equal:
            return (
                f"whose gradients were weighted for {self.kind}s; give the same reduction in every call, and where one "
                "step is for several batches, call run.backward() for each of them"
            )
        return ""

    def begin(self, kind: Kind, now: IterationInFlight) -> int | None:
        """The coming sum is of this kind. Returns the worker that adds what is in a sum already; none: all do."""
        self.kind, self.kept_by = kind, None
        return None if kind == "mean" else next(rank for rank, size in enumerate(now.batch.step.sizes) if size)

    def factor(self, now: IterationInFlight, short: float) -> float:
        """What the sum is multiplied by. `short`: samples that were planned, per sample that is in it.

        Raises TrainingError, the same on all workers, if gradients of an earlier sum are lost with a worker.
        """
        if self.kind == "mean":
            return short
        if self.kept_by in now.missing:
            raise TrainingError(
                f"worker {self.kept_by} is lost with gradients of a sum before iteration {now.batch.iteration}, to "
                'which run.backward(loss, reduction="sum") adds; call zero_grad() after every step'
            )
        return 1.0

    def per_sample(self, samples: int) -> float:
        """What divides a gradient of so many samples to make it that of their mean."""
        return max(samples, 1) if self.kind == "sum" else 1.0


def check(kind: str, has_weight: bool) -> Kind:
    """What the script gives to run.backward(). Raises TrainingError if that is not possible."""
    if kind == "sum" and not has_weight:
        return "sum"
    if kind == "mean":
        return "mean"
    raise TrainingError(
        f'run.backward(loss, reduction={kind!r}{", weight=..." if has_weight else ""}): expected "mean" or "sum", and '
        "weight= for means alone"
    )
