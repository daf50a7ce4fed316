"""Fits the training model (learning.py) to recorded runs: test accuracy, loss and accuracy of training, noise scale.

All runs share the script's learning rate, so `tuning` refers to one B for all: that of the scenario's initial sizes.
Weights and priors are chosen by us. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.sim.calibration.fitting import Array, Unknown, fitted_values, with_values
from dynamix_ps.sim.calibration.series import Series
from dynamix_ps.sim.cluster import learning
from dynamix_ps.sim.cluster.parameters import Parameters, parameters_of
from dynamix_ps.sim.scenario.load import Scenario

TEST_ACCURACY, TRAIN_ACCURACY = 0.01, 0.03  # expected error of one value
LOSS, NOISE = 0.15, 1.0  # expected error of logarithms
NOISE_PARTS = 4  # a run's noise estimates are averaged over so many parts


_UNKNOWN = {
    "tuning": Unknown(0.7, 1.0, 0.02, 1.6, log=True),
    "noise_scale": Unknown(30.0, 2.0, 0.1, 1e5, log=True),
    "noise_growth": Unknown(1.0, 0.5, 0.0, 3.0),
    "progress_scale": Unknown(20.0, 3.0, 0.1, 1e5, log=True),
    "decay": Unknown(1.0, 0.7, 0.05, 3.0, log=True),
    "accuracy_power": Unknown(1.0, 0.5, 0.2, 3.0, log=True),
    "gap": Unknown(0.015, 0.03, 0.0, 0.3),
}


def fit_training(scenario: Scenario, runs: Sequence[Series]) -> Scenario:
    """The scenario with `training` fitted to these runs."""
    first_loss = max(float(run.loss[0]) for run in runs)
    last_loss = min(float(run.loss.min()) for run in runs)
    best = max(max(run.accuracy.max(), run.test_accuracy.max(initial=0)) for run in runs)
    unknown = _UNKNOWN | {
        "first_loss": Unknown(1.2 * first_loss, 0.3, first_loss, 3 * first_loss, log=True),
        "last_loss": Unknown(0.5 * last_loss, last_loss, 0.0, last_loss),
        "best_accuracy": Unknown((1 + 3 * best) / 4, 1 - best, best, 0.5 * (1 + 0.999)),
    }
    base = parameters_of((scenario,))
    noise = [pooled_noise(run) for run in runs]

    def completed(values: Mapping[str, float]) -> dict[str, float]:
        return {**values, "chance": math.exp(-values["first_loss"])}  # accuracy of a uniform guess with this loss

    def residuals(values: Mapping[str, float]) -> Array:
        parameters = with_values(base, completed(values))
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

    found = completed(fitted_values(unknown, residuals))
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
