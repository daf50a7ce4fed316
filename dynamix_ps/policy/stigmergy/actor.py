"""One worker without a centre: what it has measured itself, the traces that it lays, and its next size. Pure.

A window goes by in three sums, each of which all workers read alike:

1. `observe` takes in the worker's own record and lays traces. They ride in the next sum.
2. `read` reads the field, finds out how late the worker is, and lays that. It rides in the sum after it.
3. `propose` reads the field again, now with everybody's lateness, and answers with the worker's next size. It rides in
   the sum after that, and takes effect with the sizes of all others.

Nothing of a record but these traces leaves the worker. What else an actor uses is in the gradient sum anyway: planned
sizes, the duration of iterations, and the gradient noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.apportion import Whole
from dynamix_ps.policy.model.compute_times import JUMP, LONGEST_S, SHORTEST_S, ComputeMeter, ComputeTimes
from dynamix_ps.policy.model.efficiency import NoiseScale
from dynamix_ps.policy.model.network_times import typical_step_s
from dynamix_ps.policy.stigmergy.moves import (
    draws_of,
    growth_of,
    is_outside,
    largest_move,
    lateness_of,
    next_sizes,
    share_of_way,
)
from dynamix_ps.policy.stigmergy.settings import CALM, StigmergySettings
from dynamix_ps.policy.stigmergy.supply import Supply
from dynamix_ps.policy.stigmergy.total import wanted_total
from dynamix_ps.policy.stigmergy.traces import Array, TraceField, Traces, field_of
from dynamix_ps.policy.window_arrays import WindowArrays, known_or


class Actor:
    """The actor of one worker, or of several that one process computes for. Each of them knows its own records alone.

    Args:
        ranks: of its workers; none: all.
        seed: of the job.
    """

    def __init__(
        self,
        n_workers: int,
        ranks: Sequence[int] | None = None,
        settings: StigmergySettings | None = None,
        seed: int = 0,
    ) -> None:
        self._ranks = tuple(range(n_workers)) if ranks is None else tuple(ranks)
        self._own = np.zeros(n_workers, dtype=np.bool_)
        self._own[list(self._ranks)] = True
        self._settings, self._seed = settings or StigmergySettings(), seed
        self._meter, self._times, self._noise = ComputeMeter(n_workers), ComputeTimes(n_workers), NoiseScale()
        self._traces = Traces(n_workers, self._settings)
        self._transfer_s = np.zeros(n_workers)  # in the window before
        self._growth = 0.0  # that all workers have alike
        self._window: WindowArrays | None = None

    @property
    def traces(self) -> Array:
        """What rides in the next sum, (len(TRACES), workers); 0 for workers of other processes."""
        return self._traces.rows

    def observe(self, window: WindowArrays) -> None:
        """Lay traces of a clean window. Call once per window, in order. Only rows of own workers count."""
        self._window = window
        sizes, times_s = self._meter.per_iteration(window)
        known = self._times.known
        self._times.observe(np.where(self._own, sizes, np.nan), np.where(self._own, times_s, np.nan))
        self._noise.observe(window)
        lines, measured = self._times.now, self._times.seen & self._own
        step_s = self._step_s
        busy = np.broadcast_to(known_or(window.push_busy), self._own.shape)
        transfer_s = busy * step_s if np.isfinite(step_s) else self._transfer_s
        changed = np.abs(transfer_s - self._transfer_s) > JUMP * step_s  # False where the duration is not known
        self._transfer_s = np.where(measured, transfer_s, self._transfer_s)
        fixed_s = np.where(measured, lines.fixed_s, 0.0)
        load = np.where(measured, lines.rates_per_s, 0.0)
        alarmed = ~known | self._times.jumped | changed
        self._traces.lay(load, fixed_s, self._transfer_s, measured, alarmed)

    def read(self, rows: NDArray[np.floating[Any]]) -> None:
        """Find out from the sum of all traces how late the own workers are, and lay that."""
        field, window = field_of(rows), self._observed()
        self._growth = 0.0
        if not field.present.any():
            return
        supply = Supply(field, window.planned, window.low, window.high, self._step_s)
        wanted = wanted_total(supply, window, float(self._noise.expected), float(field.presence.max()))
        self._growth = growth_of(wanted, supply.planned, largest_move(field))
        wishes = supply.sizes(supply.planned * math.exp(self._growth))
        lateness = lateness_of(window.planned, wishes, self._growth)
        self._traces.lay_lateness(lateness, self._own & field.present, at_once=field.alarmed > CALM)

    def propose(self, rows: NDArray[np.floating[Any]], number: int) -> Whole:
        """The next sizes of the own workers, (workers,), 0 elsewhere, from the sum of all traces.

        An own worker that is not in the field, because nothing was ever measured of it, keeps its size.

        Args:
            number: of the window.
        """
        field, window = field_of(rows), self._observed()
        planned = window.planned
        moving, moves, limit = self._moves(field, planned)
        draws = draws_of(self._seed, number, self._ranks, len(planned))
        sizes = next_sizes(planned, window.low, window.high, moves, moving, limit, draws)
        moved = np.log(np.maximum(sizes, 1) / np.maximum(planned, 1)) - self._growth
        self._traces.correct_lateness(np.where(moving & self._own, moved, 0.0))
        return np.where(self._own, sizes, 0)

    def _moves(self, field: TraceField, planned: Whole) -> tuple[NDArray[np.bool_], Array, float]:
        """Who moves, how far (log), and the largest move."""
        undamped = self._growth - field.lateness
        moving = field.present & is_outside(planned, undamped, self._settings)
        moves = self._growth - share_of_way(field, self._settings) * field.lateness
        return moving, np.where(field.present, moves, 0.0), largest_move(field)

    def _observed(self) -> WindowArrays:
        if self._window is None:
            raise ValueError("an actor reads the field after its first window; call observe() first")
        return self._window

    @property
    def _step_s(self) -> float:
        """Duration of an iteration in the last window; NaN: not known."""
        step_s = typical_step_s(self._observed())
        return step_s if SHORTEST_S <= step_s <= LONGEST_S else float("nan")
