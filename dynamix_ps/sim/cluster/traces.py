"""How machines and links change over time: warm-up, events of a trace, bursts, drift, heat.

One-time work slows the first window of a run. The scenario fixes the events, which are the same for every seed. Bursts
begin and end at random (exponential times). Drift is a slow random walk of a worker's speed around its mean
(Ornstein-Uhlenbeck process of its logarithm). Heat follows the load of each worker. The conditions at the start of a
window hold for the whole window.
"""

from __future__ import annotations

import numpy as np

from dynamix_ps.sim.cluster.effects.heat import slow_down, warmed
from dynamix_ps.sim.cluster.effects.recurrence import first_occurrence
from dynamix_ps.sim.cluster.parameters import BURST_KINDS, NEUTRAL, Kind, Mask, Parameters, Reals

_NO_BURST = NEUTRAL[list(BURST_KINDS)][:, None]


class Conditions:
    """Present factors on the parameters. Shapes (E, W), `server` (E,)."""

    slow: Reals  # on compute time, except for heat
    heat: Reals  # on compute time
    bandwidth: Reals
    loss: Reals  # added, not a factor
    latency: Reals
    server: Reals

    def __init__(self, parameters: Parameters, rng: np.random.Generator) -> None:
        self._rng = rng
        self._drift = np.zeros(parameters.initial.shape, dtype=np.float32)
        self._heat = np.zeros(parameters.initial.shape, dtype=np.float32)
        self._on = np.zeros(parameters.burst_gap_s.shape, dtype=bool)
        self._warm_up = np.ones(parameters.environments, dtype=np.float32)
        self._traced = np.empty((len(Kind), *parameters.initial.shape), dtype=np.float32)
        self.replace(parameters, np.ones(parameters.environments, dtype=bool))

    def replace(self, parameters: Parameters, which: Mask) -> None:
        """Begin a new run in some environments; their parameters may have changed."""
        self._parameters = parameters
        self._bursty = bool(np.isfinite(parameters.burst_gap_s).any())
        self._beginning_per_s, self._ending_per_s = 1 / parameters.burst_gap_s, 1 / parameters.burst_length_s
        self._drifting = bool((parameters.drift > 0).any())
        self._heating = bool((parameters.heat_slow_down > 1).any())
        self._recurring = bool(np.isfinite(parameters.event_every).any())
        mean_on = parameters.burst_length_s / (parameters.burst_gap_s + parameters.burst_length_s)
        self._on = np.where(which[:, None, None], self._rng.random(self._on.shape) < mean_on, self._on)
        fresh = self._rng.standard_normal(self._drift.shape, dtype=np.float32) * parameters.drift[:, None]
        self._drift = np.where(which[:, None], fresh, self._drift)
        self._heat = np.where(which[:, None], 0, self._heat)
        self._set_heat()
        self._warm_up = np.where(which, parameters.warm_up, self._warm_up)
        self._active = np.zeros(parameters.event_kind.shape, dtype=bool)
        self._trace(np.ones(parameters.environments, dtype=bool))
        self._combine()

    def advance(self, time_s: Reals, epoch: Reals, elapsed_s: Reals, load: Reals) -> None:
        """Advance to `time_s` and `epoch`, `elapsed_s` after the last state; all (E,).

        Args:
            load: (E, W), part of the elapsed time in which each worker computed.
        """
        parameters = self._parameters
        self._warm_up = np.ones_like(self._warm_up)
        now = np.where(parameters.event_by_epoch, epoch[:, None], time_s[:, None])
        if self._recurring:
            now = first_occurrence(now, parameters.event_from, parameters.event_every)
        active = (parameters.event_from <= now) & (now < parameters.event_until)
        changed = (active != self._active).any(axis=-1)
        if changed.any():
            self._active = active
            self._trace(changed)
        if self._bursty:
            turns = elapsed_s[:, None, None] * np.where(self._on, self._ending_per_s, self._beginning_per_s)
            self._on ^= self._rng.standard_exponential(turns.shape, dtype=np.float32) < turns
        if self._drifting:
            kept = np.exp(-elapsed_s / parameters.drift_s)
            fresh = parameters.drift * np.sqrt(1 - kept**2)
            noise = self._rng.standard_normal(self._drift.shape, dtype=np.float32)
            self._drift = self._drift * kept[:, None] + noise * fresh[:, None]
        if self._heating:
            self._heat = warmed(self._heat, load, elapsed_s, parameters.heat_s)
            self._set_heat()
        self._combine()

    def _trace(self, which: Mask) -> None:
        """Apply the active events in some environments."""
        active, value = self._active[which], self._parameters.event_value[which]
        for kind in Kind:
            mine = (active & (self._parameters.event_kind[which] == kind))[..., None]
            fold = np.add if kind is Kind.LOSS else np.multiply
            self._traced[kind, which] = fold.reduce(np.where(mine, value, NEUTRAL[kind]), axis=1)

    def _set_heat(self) -> None:
        self.heat = slow_down(self._heat, self._parameters.heat_load, self._parameters.heat_slow_down)

    def _combine(self) -> None:
        slow, bandwidth, loss, self.latency, server = self._traced
        if self._bursty:
            burst = np.where(self._on, self._parameters.burst_value, _NO_BURST)
            slow, bandwidth, loss = slow * burst[:, 0], bandwidth * burst[:, 1], loss + burst[:, 2]
        if self._drifting:
            slow = slow * np.exp(self._drift)
        slow = slow * self._warm_up[:, None]
        self.slow, self.bandwidth, self.loss, self.server = slow, bandwidth, np.minimum(loss, 0.5), server[:, 0]
