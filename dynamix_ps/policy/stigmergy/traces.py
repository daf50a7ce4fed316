"""Traces that workers lay, and the field: their sum over all workers. Pure.

A trace is a row of one number per worker. A worker writes in its own column alone, so the sum over the workers has the
trace of each. Traces evaporate: with every window an old one loses a part, and something new is added.

    presence     grows towards 1 with every window that measures the worker; 0: not measured yet, or not in the sum
    load         samples per second beyond the fixed part of its computing time
    fixed        seconds of an iteration that do not depend on its size
    congestion   seconds per iteration in which its data are on the way; 0: not measured
    alarm        laid when its own speed or link changes by more than noise: sizes may move far while it lasts
    lateness     log of its size over the one that it would like, beyond what all have alike

Load, fixed and congestion come multiplied by the presence of the worker, and are read divided by it: so the first
window counts in full. If a worker raises the alarm, they take its newest values at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.policy.stigmergy.settings import StigmergySettings

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

TRACES = ("presence", "load", "fixed", "congestion", "alarm", "lateness")
_PRESENCE, _LOAD, _FIXED, _CONGESTION, _ALARM, _LATENESS = range(len(TRACES))
_MEASURED = slice(_LOAD, _CONGESTION + 1)


class Traces:
    """What the workers of one process have laid. `rows` is (len(TRACES), workers), 0 in columns of other workers."""

    def __init__(self, n_workers: int, settings: StigmergySettings) -> None:
        self.rows = np.zeros((len(TRACES), n_workers))
        self._settings = settings

    def lay(self, load: Array, fixed_s: Array, transfer_s: Array, measured: Mask, alarmed: Mask) -> None:
        """A window is over; all arrays are (workers,).

        Args:
            measured: own workers that this window measured; the values of others do not count.
            alarmed: those of them whose speed or link has changed, and those measured for the first time.
        """
        rows, settings = self.rows, self._settings
        kept = 1 - settings.evaporation
        rows[_ALARM] = (1 - settings.calming) * rows[_ALARM] + settings.alarm * (measured & alarmed)
        presence = kept * rows[_PRESENCE] + settings.evaporation
        values = np.array((load, fixed_s, transfer_s))
        mixed = np.where(alarmed, values * presence, kept * rows[_MEASURED] + settings.evaporation * values)
        rows[_MEASURED] = np.where(measured, mixed, rows[_MEASURED])
        rows[_PRESENCE] = np.where(measured, presence, rows[_PRESENCE])

    def lay_lateness(self, lateness: Array, own: Mask, at_once: bool) -> None:
        """How late the `own` workers are, (workers,). `at_once`: earlier windows say nothing any more."""
        part = 1.0 if at_once else self._settings.evaporation
        mixed = self.rows[_LATENESS] + part * (lateness - self.rows[_LATENESS])
        self.rows[_LATENESS] = np.where(own, mixed, 0.0)

    def correct_lateness(self, moved: Array) -> None:
        """Own workers have moved, (workers,): log of the new size over the old one, beyond what all have alike."""
        self.rows[_LATENESS] += moved


@dataclass(frozen=True, slots=True)
class TraceField:
    """What every worker reads in the sum of all traces, (workers,). Where `present` is False, the rest is 0."""

    present: Mask
    presence: Array
    rates_per_s: Array
    fixed_s: Array
    transfer_s: Array
    alarm: Array
    lateness: Array

    @property
    def alarmed(self) -> float:
        """The strongest alarm."""
        return float(self.alarm.max())


def field_of(rows: NDArray[np.floating[Any]]) -> TraceField:
    """The field in a sum of traces, (len(TRACES), workers)."""
    rows = np.asarray(rows, dtype=np.float64)
    presence = rows[_PRESENCE]
    present = (presence > 0) & (rows[_LOAD] > 0)
    read = np.where(present, rows / np.where(present, presence, 1.0), 0.0)
    alarm, lateness = np.where(present, rows[_ALARM], 0.0), np.where(present, rows[_LATENESS], 0.0)
    return TraceField(present, presence, read[_LOAD], read[_FIXED], read[_CONGESTION], alarm, lateness)
