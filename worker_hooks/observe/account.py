"""What all trainings of one process have done together: iterations, samples, windows, and the plan they ended with."""

from __future__ import annotations

import time
from collections.abc import Callable

from dynamix_ps.messages import Plan
from worker_hooks.observe.reporter import Reporting


class RunAccount:
    """Records count on from one training to the next. One training at a time has the turn to record windows: the one
    whose loop began first, as its iterations are the run's; others that train meanwhile follow its plans."""

    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        self._now_s = now_s
        self.trainings = 0  # that have begun
        self.iterations = 0  # complete ones, of the trainings that had the turn
        self.samples = 0  # of this worker
        self.windows = 0
        self.plan: Plan | None = None  # the newest that all workers have agreed on
        self.reference_batch = 0  # that its learning rate was for; 0: no training is over
        self._turn: object | None = None
        self._began_s: float | None = None

    def take_turn(self, training: object) -> bool:
        """A loop of `training` begins. Returns whether it has the turn."""
        if self._began_s is None:
            self._began_s = self._now_s()
        if self._turn is None:
            self._turn = training
        return self._turn is training

    def give_turn_back(self, training: object) -> None:
        """The loop of `training` is over."""
        if self._turn is training:
            self._turn = None

    def since_begin_s(self) -> float:
        """Seconds since the first loop began; 0 before."""
        return 0.0 if self._began_s is None else self._now_s() - self._began_s

    def finished(self, reporter: Reporting) -> None:
        """The last training is over."""
        reporter.event("finished", iterations=self.iterations, samples=self.samples, train_s=self.since_begin_s())
