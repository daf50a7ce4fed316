"""Fixed batch sizes: the baseline, uniform or one size per worker."""

from __future__ import annotations

from dynamix_ps.policy.base import Decision, View


class StaticPolicy:
    """Always the same sizes."""

    name = "static"

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self._decision = Decision(sizes)

    def decide(self, view: View) -> Decision:
        return self._decision
