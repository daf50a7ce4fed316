"""Detects that the cluster has changed within a window: other workers wait than before. Pure.

When a worker becomes slow, iterations and windows get longer, and a window mixes iterations from before and after the
change. Who waits changes at once. So the rule is: the cluster has changed if one worker's waiting, as a part of the
iteration, exceeds in each of the last LASTING iterations its largest value before them by more than MORE. It compares
the smallest value since with the largest before, because chance events (a packet sent again, a used-up quota) come in
single iterations. Rule and numbers are chosen by us.

Its inputs come from trailers alone, so all workers see a change in the same iteration.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

LASTING = 3  # iterations
MORE = 0.25  # of the iteration's time
REMEMBERED = 10  # iterations before those


class ChangeWatch:
    """Sees every iteration under one plan."""

    def __init__(self) -> None:
        self._parts: deque[tuple[float, ...]] = deque(maxlen=LASTING + REMEMBERED)

    def restart(self) -> None:
        """Forget all iterations: under other batch sizes other workers wait."""
        self._parts.clear()

    def see(self, waited_s: Sequence[float], lasted_s: float) -> bool:
        """Whether the cluster changed before the last LASTING iterations, of which this is the newest.

        Args:
            waited_s: seconds per worker.
            lasted_s: seconds that the iteration took.
        """
        if not lasted_s > 0:
            return False
        self._parts.append(tuple(seconds / lasted_s for seconds in waited_s))
        if len(self._parts) < 2 * LASTING:
            return False
        oldest, newest = self._parts[0], self._parts[-1]
        # few workers wait longer now than at first: for those alone it is worth looking at what was between
        longer = [slot for slot, (now, before) in enumerate(zip(newest, oldest, strict=True)) if now > before + MORE]
        changed = any(self._has_changed([parts[slot] for parts in self._parts]) for slot in longer)
        if changed:
            self._parts = deque(list(self._parts)[-LASTING:], self._parts.maxlen)
        return changed

    @staticmethod
    def _has_changed(parts: Sequence[float]) -> bool:
        """Of one worker."""
        return min(parts[-LASTING:]) > max(parts[:-LASTING]) + MORE
