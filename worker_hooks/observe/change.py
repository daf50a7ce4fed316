"""When a cluster is no longer the one that a window began in: other workers wait than before. Pure.

Iterations get longer when a worker becomes slow, and so do windows, which then take in both clusters and tell of none.
Who waits changes at once. So the cluster has changed if one worker has waited for a part of the iteration that is
larger, by MORE, in each of LASTING iterations than in any of the ones before: the smallest since against the largest
before, as what comes by chance (a packet sent again, a quota that was used up) comes in single iterations. All chosen
by us.

It rests on what tails tell alone, so all workers see it in the same iteration.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

LASTING = 3  # iterations
MORE = 0.25  # of the iteration's time
REMEMBERED = 10  # iterations before those


class ChangeWatch:
    """Told of every iteration under one plan."""

    def __init__(self) -> None:
        self._parts: deque[tuple[float, ...]] = deque(maxlen=LASTING + REMEMBERED)

    def restart(self) -> None:
        """Forget: under other sizes other workers wait."""
        self._parts.clear()

    def see(self, waited_s: Sequence[float], lasted_s: float) -> bool:
        """Whether the last LASTING iterations, with this one, were in another cluster than those before.

        Args:
            waited_s: by worker, of the `lasted_s` seconds that the iteration took.
        """
        if not lasted_s > 0:
            return False
        self._parts.append(tuple(seconds / lasted_s for seconds in waited_s))
        if len(self._parts) < 2 * LASTING:
            return False
        workers = zip(*self._parts, strict=True)
        changed = any(min(parts[-LASTING:]) > max(parts[:-LASTING]) + MORE for parts in workers)
        if changed:
            self._parts = deque(list(self._parts)[-LASTING:], self._parts.maxlen)
        return changed
