"""Fixed batch sizes, uniform or one per worker: the baseline."""

from __future__ import annotations

from dynamix_ps.config.schema import Config
from dynamix_ps.policy.base import Decision, View


class StaticPolicy:
    """Always the same sizes."""

    name = "static"

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self._decision = Decision(sizes)

    def decide(self, view: View) -> Decision:
        return self._decision


def static_policy(config: Config) -> StaticPolicy:
    """The policy with the sizes of `policy.sizes`, or with the first sizes of the workers if that is not set."""
    return StaticPolicy(config.policy.sizes or config.initial_sizes())
