"""Fixed batch sizes: the baseline, uniform or one size per worker."""

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
    """The sizes of `policy.sizes`, otherwise the first sizes of the workers."""
    return StaticPolicy(config.policy.sizes or config.initial_sizes())
