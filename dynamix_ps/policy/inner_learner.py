"""A policy around another one, which goes on learning inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dynamix_ps.policy.base import Learner, Policy


class InnerLearner(Policy):
    """Forwards what a `Learner` is asked to the policy inside; of one that does not learn no update is ever due."""

    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self.inner = policy

    @property
    def update_due(self) -> bool:
        return isinstance(self.inner, Learner) and self.inner.update_due

    def begin_update(self) -> Callable[[], Any]:
        return self._learner.begin_update()

    def finish_update(self, finished: Any) -> Mapping[str, Any]:
        return self._learner.finish_update(finished)

    def save(self, file: Path) -> None:
        self._learner.save(file)

    @property
    def _learner(self) -> Learner:
        assert isinstance(self.inner, Learner)  # else no update is ever due
        return self.inner
