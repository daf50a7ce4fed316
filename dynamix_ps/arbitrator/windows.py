"""Collects the window records of all workers and says which window can be decided. Pure; time is passed in."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from dynamix_ps.messages import WindowRecord

MAX_OPEN_WINDOWS = 8  # with more undecided windows, the oldest is dropped


@dataclass(frozen=True, slots=True)
class ClosedWindow:
    """The records of one window by rank; None: not reported in time."""

    window: int
    records: tuple[WindowRecord | None, ...]
    timed_out: bool


@dataclass(slots=True)
class _Open:
    first_s: float
    records: dict[int, WindowRecord] = field(default_factory=dict)


class Windows:
    """The open windows of `n_workers` workers. Each window closes once; no window closes after a later one.

    Records may arrive late, twice or in any order: only the first record of a rank for an open window counts.
    """

    def __init__(self, n_workers: int, closed: int = -1) -> None:
        self._n_workers = n_workers
        self._closed = closed
        self._open: dict[int, _Open] = {}
        self._last_duration_s = 0.0

    def add(self, record: WindowRecord, now_s: float) -> bool:
        """Take a record in. Returns whether it counts."""
        if record.window <= self._closed:
            return False
        entry = self._open.get(record.window)
        if entry is None:
            if len(self._open) >= MAX_OPEN_WINDOWS:
                oldest = min(self._open)
                if record.window < oldest:
                    return False
                del self._open[oldest]
            entry = self._open[record.window] = _Open(now_s)
        if record.rank in entry.records:
            return False
        entry.records[record.rank] = record
        return True

    def ready(self, absent: Set[int], lease_s: float, now_s: float) -> ClosedWindow | None:
        """The newest window that can be decided now. Closes it and all windows before it.

        A window is ready when every worker that is not `absent` has reported it, or when its first record is older
        than max(lease_s, twice the duration of the last window). Both rules are chosen by us.
        """
        wanted = set(range(self._n_workers)) - absent
        patience_s = max(lease_s, 2 * self._last_duration_s)
        for window in sorted(self._open, reverse=True):
            entry = self._open[window]
            complete = wanted <= entry.records.keys()
            if complete or now_s - entry.first_s > patience_s:
                return self._close(window, timed_out=not complete)
        return None

    def _close(self, window: int, timed_out: bool) -> ClosedWindow:
        records = self._open[window].records
        self._closed = window
        self._open = {number: entry for number, entry in self._open.items() if number > window}
        self._last_duration_s = max(record.duration_s for record in records.values())
        return ClosedWindow(window, tuple(records.get(rank) for rank in range(self._n_workers)), timed_out)
