"""Fixed batch sizes, uniform or one per worker: the baseline."""

from __future__ import annotations

from dynamix_ps.config.schema import Config
from dynamix_ps.policy.base import Decision, View


class StaticPolicy:
    """Always the same sizes: these, or without them those of the plan that a run begins with.

    Where workers come and go, it goes on with what the plan has then.
    """

    name = "static"

    def __init__(self, sizes: tuple[int, ...] | None = None) -> None:
        self._sizes = sizes

    def decide(self, view: View) -> Decision:
        planned = view.plan.batch_sizes
        if self._sizes is None or any(bool(new) != bool(old) for new, old in zip(planned, self._sizes, strict=True)):
            self._sizes = planned
        return Decision(self._sizes)


def static_policy(config: Config) -> StaticPolicy:
    """The policy with the sizes of `policy.sizes`, where they are set."""
    return StaticPolicy(config.policy.sizes)
