"""One window of training by the learning rate, for all environments at once; those without a workload do not count.

    script's rate, rule, Adam -> effective rate -> moments (quadratic.py) -> loss, noise scale

The effective rate over the tuned one is

    s = (script_rate x rule's factor x adam) ^ rate_power
    adam = sqrt((1 + N / tuned batch) / (1 + N / B))

Adam divides the gradient by the root of its mean square, of which N / B is noise; so a larger batch makes its steps
longer. A network whose loss rises to DEAD times that at the start is dead: it learns no more, at any rate. The luck
of a window is that of learning.py: as if it had more or fewer iterations. All of this is chosen by us.
"""

from __future__ import annotations

import numpy as np

from dynamix_ps.policy.model.efficiency import rule_factor
from dynamix_ps.sim.cluster import learning
from dynamix_ps.sim.cluster.parameters import Mask, Parameters, Reals
from dynamix_ps.sim.cluster.quadratic import (
    Moments,
    Spectrum,
    averaged_loss,
    noise_batches,
    trained,
    untrained,
)

DEAD = np.float32(1.5)  # times the loss at the start
_SMALLEST = np.float32(1e-6)  # excess loss


class WorkloadTraining:
    """State of these trainings; all arrays are (E,).

    Attributes:
        excess: loss of the weights over that at the start, at most 1; averaged: that of their average.
        noise: N in samples.
        signal: squared norm of the true gradient over that at the start.
        dead: whether the network learns no more.
    """

    def __init__(self, parameters: Parameters) -> None:
        everywhere = np.ones(parameters.environments, dtype=bool)
        self.dead: Mask = ~everywhere
        self._begin(parameters)
        self._moments = untrained(self._spectrum)
        self._observe(np.ones(parameters.environments, dtype=np.float32))

    def restart(self, parameters: Parameters, which: Mask) -> None:
        """Begin new trainings in some environments; their parameters may have changed."""
        self._begin(parameters)
        fresh = untrained(self._spectrum)
        self._moments = _where(which, fresh, self._moments)
        self.dead = self.dead & ~which
        self._observe(np.ones(len(which), dtype=np.float32))

    def train(self, batch: Reals, unit_noise: Reals) -> None:
        """Train one window.

        Args:
            batch: B in samples, at least 1.
            unit_noise: standard normal.
        """
        parameters = self._parameters
        rate = self._rate(batch)
        iterations = parameters.iterations * np.maximum(1 + learning.PROGRESS_SPREAD * unit_noise, 0)
        after = trained(self._spectrum, self._moments, rate, batch / parameters.tuned_batch, iterations)
        self.dead = self.dead | ~(after.loss < DEAD) & parameters.by_workload
        self._moments = _where(self.dead, untrained(self._spectrum), after)
        self._observe(rate)

    def _rate(self, batch: Reals) -> Reals:
        """s of a window."""
        parameters = self._parameters
        rule = rule_factor(parameters.lr_rule, parameters.reference_batch, self.noise, batch)
        adam = np.sqrt((1 + self.noise / parameters.tuned_batch) / (1 + self.noise / batch))
        script = parameters.script_rate * rule
        rate: Reals = (script * np.where(parameters.adaptive, adam, 1)) ** parameters.rate_power
        return rate

    def _begin(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._spectrum = Spectrum(parameters.curvature, parameters.start, parameters.mode_noise)

    def _observe(self, rate: Reals) -> None:
        spectrum, moments = self._spectrum, self._moments
        self.excess = np.clip(moments.loss, _SMALLEST, 1)
        self.averaged = np.clip(averaged_loss(spectrum, moments, rate), _SMALLEST, 1)
        self.noise = self._parameters.tuned_batch * noise_batches(spectrum, moments)
        steepness = (spectrum.curvature * moments.modes).sum(axis=-1)
        self.signal = steepness / np.maximum((spectrum.curvature * spectrum.start).sum(axis=-1), _SMALLEST)


def _where(which: Mask, these: Moments, others: Moments) -> Moments:
    return Moments(*(np.where(which[:, None], a, b) for a, b in zip(these, others, strict=True)))
