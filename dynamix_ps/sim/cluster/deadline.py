"""Iterations one by one, in which a worker that is late ends its backward pass early. Shapes (E, W) and (E,).

The rule is that of a job (worker_hooks/planning/deadline.py). Worker i comes when it has computed, c_i after the
iteration began. The median of that over the newest iterations of a plan is its usual time, and

    deadline = factor * max_i median(c_i)

The first iterations of a plan have none: a sum tells of the iteration before it, the first one does not count, and the
first look is after EVERY more. A worker that was late in one of the last `lately` iterations computes in P parts, or in
as many as it has samples. Its forward pass, a third of what its samples take, and its fixed time cannot be cut. Its
backward pass ends with the part in which the deadline passes. Samples of the other parts count as not processed, and
come again. A worker in one part cannot end early.

Parts cost computing, `part_cost` for each beyond the first. They also cost overlap: gradients are complete in the last
part alone, so pushes hide behind that part; of a worker that ends early nothing is hidden, because it does not know
before that this part is its last. The worker that computes longest decides behind what the others' pushes hide.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dynamix_ps.sim.cluster.cost import BACKWARD, WindowTimes, drawn_compute_s, times_of
from dynamix_ps.sim.cluster.parameters import Mask, Parameters, Reals
from dynamix_ps.sim.cluster.traces import Conditions

LOOKED_AT = 20  # iterations, the newest of a plan
EVERY = 5  # iterations between two looks
SKIPPED = 2  # sums of a plan: the first tells of another plan, the second of an iteration that is not like the others
LATELY = 100  # iterations (chosen by us, as the numbers above)


@dataclass(frozen=True, slots=True)
class DeadlineSettings:
    """What a job is told, and what parts cost.

    Attributes:
        factor: on the usual time of the slowest worker; infinite: no deadline.
        parts: of the batch of a worker that was late lately.
        part_cost: of a worker's computing, for each part beyond the first (5 % for eight parts: chosen by us).
        cuts_forward: parts have a forward pass of their own, which can be left out too.
        lately: iterations; a worker that was late in one of the last so many computes in parts.
    """

    factor: float = np.inf
    parts: int = 8
    part_cost: float = 0.05 / 7
    cuts_forward: bool = False
    lately: int = LATELY


class SimulatedDeadline:
    """That of each environment.

    Attributes:
        factor: (E,), may change with each plan.
        seconds: (E,), since an iteration began.
    """

    def __init__(self, settings: DeadlineSettings, environments: int, n_workers: int) -> None:
        self._settings = settings
        self.factor: Reals = np.full(environments, settings.factor, dtype=np.float32)
        self.seconds: Reals = np.empty(environments, dtype=np.float32)
        self._age = np.empty(environments, dtype=np.int64)  # iterations of the plan that have ended
        self._came_s = np.empty((LOOKED_AT, environments, n_workers), dtype=np.float32)  # newest last; NaN: none
        self._since_late = np.empty((environments, n_workers), dtype=np.int64)
        self.restart(np.ones(environments, dtype=bool))

    def restart(self, which: Mask) -> None:
        """New runs begin in some environments."""
        self._since_late[which] = self._settings.lately
        self.begin_plan(which)

    def begin_plan(self, which: Mask) -> None:
        """In some environments."""
        self.seconds[which], self._age[which], self._came_s[:, which] = np.inf, 0, np.nan

    def iteration(
        self, parameters: Parameters, conditions: Conditions, sizes: Reals, draws: Reals
    ) -> tuple[WindowTimes, Reals]:
        """How long an iteration takes, and how many samples each worker processes, (E, W). Arguments: `drawn_times`."""
        settings, deadline_s = self._settings, self.seconds[:, None]
        mean_s, whole_s = drawn_compute_s(parameters, conditions, sizes, draws)
        late = self._since_late < settings.lately
        parts = np.where(late, np.clip(sizes, 1, settings.parts), 1).astype(np.float32)
        whole_s = whole_s * (1 + np.float32(settings.part_cost) * (parts - 1))
        fixed_s = np.minimum(parameters.fixed_s * conditions.slow * conditions.heat, whole_s)
        cut_s = (whole_s - fixed_s) * (1 if settings.cuts_forward else BACKWARD)
        begins_s = whole_s - cut_s  # of what can be cut
        done = np.clip(np.ceil((deadline_s - begins_s) / np.maximum(cut_s / parts, np.float32(1e-9))), 1, parts)
        computing_s = np.where(done < parts, begins_s + cut_s * done / parts, whole_s)
        hiding_s = mean_s * np.where(done < parts, 0, 1 / parts)
        last = computing_s.argmax(axis=-1, keepdims=True)
        times = times_of(parameters, conditions, computing_s, hiding_s, np.take_along_axis(hiding_s, last, axis=-1))
        self._see(computing_s)
        return times, sizes - np.floor(sizes * (parts - done) / parts)

    def _see(self, computing_s: Reals) -> None:
        """The iteration has ended. The deadline of the next one comes from those before this one."""
        self._since_late = np.where(computing_s > self.seconds[:, None], 0, self._since_late + 1)
        self._age += 1
        told = self._age - SKIPPED
        looks = (told > 0) & (told % EVERY == 0)
        if looks.any():
            self.seconds[looks] = self.factor[looks] * np.nanmedian(self._came_s[:, looks], axis=0).max(axis=-1)
        self._came_s[:-1] = self._came_s[1:]
        self._came_s[-1] = np.where((self._age > 1)[:, None], computing_s, np.nan)
