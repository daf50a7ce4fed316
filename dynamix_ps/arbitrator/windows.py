"""Collects the window records of all workers and finds the window that can be decided. Pure; time is passed in."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from statistics import median_low
from typing import NamedTuple

from dynamix_ps.messages import WindowRecord

MAX_OPEN_WINDOWS = 8  # with more undecided windows, the oldest is dropped
MAX_AHEAD = 4  # windows that one worker can be ahead of all others, by delays of reports alone (chosen by us)
MANY = 10  # windows a worker reports while none is decided; more than a delay (chosen by us)
LASTING = 8  # reports in a row after which a worker that is far ahead of all others counts (chosen by us)


@dataclass(frozen=True, slots=True)
class ClosedWindow:
    """The records of one window by rank; None: not reported in time."""

    window: int
    records: tuple[WindowRecord | None, ...]
    timed_out: bool


class _FarAhead(NamedTuple):
    """The newest record of a worker that is far ahead, and how many in a row it has sent."""

    record: WindowRecord
    in_a_row: int


@dataclass(slots=True)
class _Open:
    first_s: float
    records: dict[int, WindowRecord] = field(default_factory=dict)


class Windows:
    """The open windows of `n_workers` workers. Each window closes once; no window closes after a later one.

    Records may arrive late, twice or in any order: only the first record of a rank for an open window counts.

    A record that is far ahead of all other workers waits until another worker gets there, or until LASTING of them have
    come in a row, so that a wrong window number does not close the windows before it. After the arbitrator was away,
    all workers are far ahead.
    """

    def __init__(self, n_workers: int, closed: int = -1) -> None:
        self._n_workers = n_workers
        self._closed = closed
        self._open: dict[int, _Open] = {}
        self._newest: dict[int, int] = {}  # the newest reported window, by rank
        self._far_ahead: dict[int, _FarAhead] = {}  # by rank
        self._last_duration_s = 0.0
        self._since: dict[int, int] = {}  # reported windows since the last closed one, by rank
        self._waiting_s: float | None = None  # when the first of them was reported

    def add(self, record: WindowRecord, now_s: float, live: Callable[[], AbstractSet[int]] = frozenset) -> bool:
        """Take a record in. Returns whether a record counts now. `live` tells which workers report too."""
        if record.window > self._newest.get(record.rank, -1):
            self._newest[record.rank] = record.window
            self._since[record.rank] = self._since.get(record.rank, 0) + 1
            self._waiting_s = now_s if self._waiting_s is None else self._waiting_s
        before = self._far_ahead.get(record.rank)
        follows = before is not None and 0 < record.window - before.record.window <= MAX_AHEAD
        self._far_ahead[record.rank] = _FarAhead(record, before.in_a_row + 1 if before and follows else 1)
        near = [one.record for one in self._far_ahead.values() if self._is_near(one, live)]
        for one in near:
            del self._far_ahead[one.rank]
        return any([self._count(one, now_s) for one in near])

    @property
    def most_reported(self) -> int:
        """The number of records of the open window that has most."""
        return max((len(entry.records) for entry in self._open.values()), default=0)

    def _is_near(self, far_ahead: _FarAhead, live: Callable[[], AbstractSet[int]]) -> bool:
        record = far_ahead.record
        if record.window <= self._closed + MAX_AHEAD or far_ahead.in_a_row >= LASTING or not live() - {record.rank}:
            return True
        others = (window for rank, window in self._newest.items() if rank != record.rank)
        return record.window <= max(others, default=0) + MAX_AHEAD

    def _count(self, record: WindowRecord, now_s: float) -> bool:
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

    def ready(self, absent: AbstractSet[int], lease_s: float, now_s: float) -> ClosedWindow | None:
        """The newest window that can be decided now. Closes it and all windows before it.

        A window is ready when every worker that is not `absent` has reported it, or when its first record is older
        than max(lease_s, twice the duration of the last window). Both rules are chosen by us.
        """
        wanted = set(range(self._n_workers)) - absent
        patience_s = self._patience_s(lease_s)
        for window in sorted(self._open, reverse=True):
            entry = self._open[window]
            complete = wanted <= entry.records.keys()
            if complete or now_s - entry.first_s > patience_s:
                return self._close(window, timed_out=not complete)
        return None

    def _patience_s(self, lease_s: float) -> float:
        return max(lease_s, 2 * self._last_duration_s)

    def overdue(self, absent: AbstractSet[int], lease_s: float, now_s: float) -> str:
        """Which windows are missing, if MANY were reported since one was closed; empty: all is well."""
        if max(self._since.values(), default=0) < MANY or self._waiting_s is None:
            return ""
        if now_s - self._waiting_s <= self._patience_s(lease_s):
            return ""
        newest = max(self._newest.values())
        found = ((rank, self._newest.get(rank)) for rank in range(self._n_workers) if rank not in absent)
        behind = [
            f"worker {rank} " + ("has reported none" if window is None else f"has reported up to {window}")
            for rank, window in found
            if window is None or window <= newest - MANY
        ]
        return f"the newest window is {newest}, and {', '.join(behind) or 'no window has come from all workers'}"

    def _close(self, window: int, timed_out: bool) -> ClosedWindow:
        records = self._open[window].records
        self._closed = window
        self._since, self._waiting_s = {}, None
        self._open = {number: entry for number, entry in self._open.items() if number > window}
        self._last_duration_s = median_low(record.duration_s for record in records.values())  # one may be wrong
        return ClosedWindow(window, tuple(records.get(rank) for rank in range(self._n_workers)), timed_out)
