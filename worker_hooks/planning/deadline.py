"""The deadline of an iteration, which ends the backward pass of a worker that is late. Pure.

An iteration begins on all workers at about the same time: when the sum before it is there. A trailer tells how long
the iteration before has lasted, T, and how long each worker has waited in it, w_i. So T - w_i is when worker i came.
The median of that over the newest iterations of a plan is its usual time, and

    deadline = factor * max_i median(T - w_i)

in seconds since the iteration began. A worker that is late in more than half of them is not late but slow: its usual
time grows, and the deadline with it, until a plan gives that worker less. The numbers of iterations are chosen by us.

A worker counts as late once it was late twice in a row: single iterations are longer by chance. Until then it computes
its batch whole, which costs nothing and cannot end early.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Hashable, Sequence

AUTO = 1.15  # the factor of `policy.deadline: auto`
LOOKED_AT = 20  # iterations, the newest of a plan
EVERY = 5  # iterations between two looks; the first ones of a plan have no deadline
IN_A_ROW = 2  # iterations in which a worker is late
LATELY = 20  # iterations


class Deadline:
    """That of one training.

    Attributes:
        seconds: since the iteration began; infinite: there is none.
        late_lately: this worker was late IN_A_ROW, and again in one of the last LATELY iterations.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._since_late, self._in_a_row = LATELY, 0
        self._plan: Hashable = None
        self._begin_plan()

    def _begin_plan(self) -> None:
        self.seconds = math.inf
        self._came_s: deque[tuple[float, ...]] = deque(maxlen=LOOKED_AT)
        self._left = EVERY
        self._skipped = 2  # a sum tells of the iteration before, and the first one of a plan is not like the others

    @property
    def late_lately(self) -> bool:
        return self._since_late < LATELY

    def computed(self, seconds: float) -> None:
        """This worker's backward pass has ended so many seconds after its iteration began."""
        is_late = seconds > self.seconds
        self._in_a_row = self._in_a_row + 1 if is_late else 0
        counts = is_late and (self.late_lately or self._in_a_row >= IN_A_ROW)
        self._since_late = 0 if counts else self._since_late + 1

    def see(self, plan: Hashable, came_s: Sequence[float]) -> None:
        """Take in what the sum of an iteration tells.

        Args:
            plan: under which this iteration runs, and the workers in it.
            came_s: of each of these workers, when it came to the sum before: seconds since that iteration began.
        """
        if plan != self._plan:
            self._plan = plan
            self._begin_plan()
        if self._skipped:
            self._skipped -= 1
            return
        self._came_s.append(tuple(came_s))
        self._left -= 1
        if not self._left:
            self._left = EVERY
            self.seconds = self._factor * max(map(statistics.median, zip(*self._came_s, strict=True)))
