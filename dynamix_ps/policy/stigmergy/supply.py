"""By when which worker has computed how many samples, as the field says. Pure.

    samples_i(t) = load_i * (t - fixed_i - given_up_i), within its bounds

t is one time for all workers: with it, everybody can say its own size, and knows what the sizes of all add up to. As in
the model of the central policies (model/network_times.py, model/advice.py), a worker whose data take longer
than those of most gives up computing time: twice the difference, because half of a lead is lost.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from dynamix_ps.apportion import Whole
from dynamix_ps.policy.model.compute_times import together_within
from dynamix_ps.policy.model.network_times import exposed_s, network_between, typical
from dynamix_ps.policy.stigmergy.traces import Array, TraceField


class Supply:
    """The supply of the workers in a field that has at least one.

    Args:
        planned: sizes of the window that was measured, (workers,).
        low, high: bounds of the sizes, (workers,).
        iteration_s: how long an iteration took; NaN: not known, so the network counts for nothing.

    Attributes:
        planned: what these workers have together.
        smallest, largest: what their bounds allow together.
    """

    def __init__(self, field: TraceField, planned: Whole, low: Whole, high: Whole, iteration_s: float) -> None:
        self._there = there = np.flatnonzero(field.present)
        self._n_workers = len(planned)
        self._rates_per_s = rates_per_s = field.rates_per_s[there]
        self._low, self._high = low[there], high[there]
        self.planned = int(planned[there].sum())
        self.smallest, self.largest = int(self._low.sum()), int(self._high.sum())
        fixed_s = field.fixed_s[there]
        self._least_s = fixed_s + self._low / rates_per_s  # at the lower bound
        self._network_s, self._hiding, later_s = np.zeros(len(there)), np.zeros(()), np.zeros(len(there))
        if math.isfinite(iteration_s):
            compute_s = fixed_s + planned[there] / rates_per_s
            network = network_between(field.transfer_s[there], np.array([iteration_s]), compute_s)
            if np.isfinite(network.exposed_s).all():
                self._network_s, self._hiding = network.network_s, network.hiding
                later_s = np.maximum(network.exposed_s - typical(network.exposed_s, rates_per_s), 0.0)
        self._fixed_s = fixed_s + 2 * later_s / (1 - self._hiding)
        self._usual_network_s = float(typical(self._network_s, rates_per_s))

    def together_s(self, totals: ArrayLike) -> Array:
        """The time for which all compute so that they come to each of `totals` samples, within their bounds."""
        from_s, until_s = (self._fixed_s + sizes / self._rates_per_s for sizes in (self._low, self._high))
        return together_within(totals, self._low, self._rates_per_s, from_s, until_s)

    def iteration_s(self, totals: Array) -> Array:
        """How long an iteration of each of `totals` samples, (totals,), takes."""
        until_s = np.maximum(self.together_s(totals), self._least_s.max())  # all wait for a slow worker
        most_s = until_s + np.maximum(self._usual_network_s - self._hiding * until_s, 0.0)
        halfway_s = (until_s[:, None] + self._least_s) / 2  # whoever is behind a slow link computes as short as it can
        last_s = (halfway_s + exposed_s(self._network_s, self._hiding, halfway_s)).max(axis=-1)
        return np.asarray(np.maximum(most_s, last_s))

    def sizes(self, total: float) -> Array:
        """The size that each worker would like if all together have `total`, (workers,), not rounded.

        0 for workers that are not in the field.
        """
        grown = self._rates_per_s * (self.together_s(total) - self._fixed_s)
        sizes = np.zeros(self._n_workers)
        sizes[self._there] = np.minimum(np.maximum(grown, self._low), self._high)
        return sizes
