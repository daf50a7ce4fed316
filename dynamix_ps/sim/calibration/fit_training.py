"""Fits the training model (learning.py) to recorded runs: test accuracy, loss and accuracy of training, noise scale.

All runs share the script's learning rate, so `tuning` refers to one B for all: that of the scenario's initial sizes.
Weights and priors are chosen by us. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.sim.calibration.fitting import Array, Prior, robust_fit, with_values
from dynamix_ps.sim.calibration.series import Series
from dynamix_ps.sim.cluster import learning
from dynamix_ps.sim.cluster.parameters import Parameters, parameters_of
from dynamix_ps.sim.scenario.load import Scenario

TEST_ACCURACY, TRAIN_ACCURACY = 0.01, 0.03  # expected error of one value
LOSS, NOISE = 0.15, 1.0  # expected error of logarithms
NOISE_PARTS = 4  # a run's noise estimates are averaged over so many parts


class _Unknown(NamedTuple):
    start: float
    spread: float  # spread of the prior around the start
    low: float
    high: float
    log: bool = False  # fit its logarithm; `spread` is then in logarithms


_UNKNOWN = {
    "tuning": _Unknown(0.7, 1.0, 0.02, 1.6, log=True),
    "noise_scale": _Unknown(30.0, 2.0, 0.1, 1e5, log=True),
    "noise_growth": _Unknown(1.0, 0.5, 0.0, 3.0),
    "progress_scale": _Unknown(20.0, 3.0, 0.1, 1e5, log=True),
    "decay": _Unknown(1.0, 0.7, 0.05, 3.0, log=True),
    "accuracy_power": _Unknown(1.0, 0.5, 0.2, 3.0, log=True),
    "gap": _Unknown(0.015, 0.03, 0.0, 0.3),
}


def fit_training(scenario: Scenario, runs: Sequence[Series]) -> Scenario:
    """The scenario with `training` fitted to these runs."""
    first_loss = max(float(run.loss[0]) for run in runs)
    last_loss = min(float(run.loss.min()) for run in runs)
    best = max(max(run.accuracy.max(), run.test_accuracy.max(initial=0)) for run in runs)
    unknown = _UNKNOWN | {
        "first_loss": _Unknown(1.2 * first_loss, 0.3, first_loss, 3 * first_loss, log=True),
        "last_loss": _Unknown(0.5 * last_loss, last_loss, 0.0, last_loss),
        "best_accuracy": _Unknown((1 + 3 * best) / 4, 1 - best, best, 0.5 * (1 + 0.999)),
    }
    names = tuple(unknown)
    logs = np.array([one.log for one in unknown.values()])
    start, spread, low, high = (
        np.array([getattr(one, part) for one in unknown.values()]) for part in ("start", "spread", "low", "high")
    )
    start, low, high = (np.where(logs, np.log(np.where(logs, edge, 1)), edge) for edge in (start, low, high))
    base = parameters_of((scenario,))
    noise = [pooled_noise(run) for run in runs]

    def values(x: Array) -> dict[str, Any]:
        found = dict(zip(names, np.where(logs, np.exp(np.where(logs, x, 0)), x).tolist(), strict=True))
        return found | {"chance": math.exp(-found["first_loss"])}  # accuracy of a uniform guess with this loss

    def residuals(x: Array) -> Array:
        parameters = with_values(base, values(x))
        parts = []
        for run, (noise_at, measured) in zip(runs, noise, strict=True):
            curve = Curve(parameters, run)
            parts += [
                (curve.test_accuracy(run.evaluated) - run.test_accuracy) / TEST_ACCURACY,
                (curve.accuracy(run.first) - run.accuracy) / TRAIN_ACCURACY,
                np.log(curve.loss(run.first) / run.loss) / LOSS,
                np.log(curve.noise_scale(noise_at) / measured) / NOISE,
            ]
        return np.concatenate(parts)

    found = values(robust_fit(residuals, Prior(start, spread, low, high)))
    signal = np.concatenate([run.signal / Curve(with_values(base, found), run).excess(run.first) for run in runs])
    found["gradient_sq"] = max(float(np.nanmedian(signal)), 1e-12)
    return scenario.model_copy(update={"training": scenario.training.model_copy(update=found)})


class Curve:
    """Training under a run's sizes: progress after every k iterations, as in simulator.py.

    Values are interpolated; the value of a window is the one in its middle. `first` is a window's first iteration.
    """

    def __init__(self, parameters: Parameters, run: Series) -> None:
        self._parameters = parameters
        self._k = int(parameters.window[0])
        progress, smoothed = np.zeros(1, dtype=np.float32), parameters.reference_batch
        self._progress, self._smoothed = [0.0], [float(smoothed[0])]
        for first in range(0, len(run.sizes_at), self._k):
            batch = run.sizes_at[first : first + self._k].sum(axis=-1).mean(keepdims=True).astype(np.float32)
            noise = learning.noise_scale(parameters, learning.excess_loss(parameters, progress))
            progress = np.maximum(progress + self._k * learning.step_progress(parameters, noise, batch), 0)
            smoothed = learning.smoothed_batch(parameters, smoothed, batch)
            self._progress.append(float(progress[0]))
            self._smoothed.append(float(smoothed[0]))

    def test_accuracy(self, iterations: Array) -> Array:
        """Test accuracy after so many iterations."""
        excess, smoothed = self._excess(iterations), self._at(iterations, self._smoothed)
        return np.asarray(learning.test_accuracy(self._parameters, excess, smoothed), dtype=np.float64)

    def accuracy(self, first: NDArray[np.int64]) -> Array:
        """Of training."""
        return np.asarray(learning.training_accuracy(self._parameters, self.excess(first)), dtype=np.float64)

    def loss(self, first: NDArray[np.int64]) -> Array:
        return np.asarray(learning.training_loss(self._parameters, self.excess(first)), dtype=np.float64)

    def noise_scale(self, iterations: Array) -> Array:
        return np.asarray(learning.noise_scale(self._parameters, self._excess(iterations)), dtype=np.float64)

    def excess(self, first: NDArray[np.int64]) -> NDArray[np.float32]:
        return self._excess(np.asarray(first + 0.5 * self._k, dtype=np.float64))

    def _excess(self, iterations: Array) -> NDArray[np.float32]:
        return learning.excess_loss(self._parameters, self._at(iterations, self._progress))

    def _at(self, iterations: Array, values: Sequence[float]) -> NDArray[np.float32]:
        return np.interp(iterations, self._k * np.arange(len(values)), values).astype(np.float32)


def pooled_noise(run: Series) -> tuple[Array, Array]:
    """(iterations, noise scale) over parts of a run.

    V and S are averaged separately. Parts in which a mean is not positive are left out.
    """
    found = []
    for rows in np.array_split(np.flatnonzero(np.isfinite(run.variance) & np.isfinite(run.signal)), NOISE_PARTS):
        if len(rows):
            variance, signal = run.variance[rows].mean(), run.signal[rows].mean()
            if variance > 0 and signal > 0:
                found.append((run.first[rows].mean(), variance / signal))
    iterations, scale = np.array(found, dtype=np.float64).reshape(-1, 2).T
    return iterations, scale
