"""What a simple model of the cluster would do: the ground on which the structured policy stands.

The model knows computing times (compute_times.py), the network time that nothing hides, and the gradient noise scale N.
With all workers finishing together an iteration of global batch B lasts

    T(B) = a + B / R        R: samples per second of all, a: fixed computing and exposed network

and progress per second, B / (B + N) / T(B) (arXiv 1812.06162, eq. 2.7), is largest at B* = sqrt(a R N) (our
derivation). The learned policy sees log2(B* / B) and the part of T that grows with B, and is free to disagree.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.policy.compute_times import ComputeTimes, balance
from dynamix_ps.policy.features import ratio
from dynamix_ps.policy.state import State
from dynamix_ps.policy.window_arrays import Array

ADVICE = ("advised_batch", "growing_part")  # log2(B* / B), and B / R over T
SMOOTHING = 0.5  # weight of the newest window in the exposed network time (chosen by us)
LARGEST = 6.0  # |log2(B* / B)| is cut off there


class Advisor:
    """Remembers what the model needs; shape (workers,) or (environments, workers)."""

    def __init__(self, *shape: int) -> None:
        self._times = ComputeTimes(*shape)
        self._exposed_s = np.full(shape[:-1], np.nan)
        self._fixed_s = np.zeros(shape)
        self._rates_per_s = np.ones(shape)

    def restart(self, which: NDArray[np.bool_]) -> None:
        """Forget some environments."""
        self._times.restart(which)
        self._exposed_s[which] = np.nan

    def observe(self, state: State) -> Array:
        """Take in a window. The advice, (..., 2), NaN where nothing is known yet."""
        window = state.window
        iterations = window.iterations[..., None]
        self._times.observe(window.samples / iterations, window.compute_s / iterations)
        known = self._times.known
        self._fixed_s = _filled(self._times.fixed_s, known)
        self._rates_per_s = _filled(self._times.rates_per_s, known, otherwise=1.0)
        self._follow_exposed(window.duration_s / window.iterations, window.compute_s / iterations)

        batch = np.maximum(window.global_batch, 1)
        rate_per_s = self._rates_per_s.sum(axis=-1)
        constant_s = (self._fixed_s * self._rates_per_s).sum(axis=-1) / rate_per_s + self._exposed_s
        best = np.sqrt(constant_s * rate_per_s * state.noise_scale)
        growing_s = batch / rate_per_s
        advised = np.clip(np.log2(ratio(best, batch)), -LARGEST, LARGEST)
        advice = np.stack([advised, ratio(growing_s, constant_s + growing_s)], axis=-1)
        return np.where(known.any(axis=-1)[..., None], advice, np.nan)

    def balanced(self, totals: NDArray[np.int64]) -> Array:
        """Real-valued sizes, (..., workers), with which all would finish together; positive."""
        _, sizes = balance(totals, self._fixed_s, self._rates_per_s)
        return np.maximum(sizes, 1e-9)

    def _follow_exposed(self, iteration_s: Array, compute_s: Array) -> None:
        """T less the longest computing time, smoothed."""
        longest_s = np.where(np.isfinite(compute_s), compute_s, -np.inf).max(axis=-1)
        exposed_s = np.where(np.isfinite(longest_s), np.maximum(iteration_s - longest_s, 0.0), np.nan)
        before_s = np.where(np.isfinite(self._exposed_s), self._exposed_s, exposed_s)
        after_s = before_s + SMOOTHING * (exposed_s - before_s)
        self._exposed_s = np.where(np.isfinite(exposed_s), after_s, self._exposed_s)


def _filled(values: Array, known: NDArray[np.bool_], otherwise: float = 0.0) -> Array:
    """Unknown values are the mean of the workers' known ones."""
    count = known.sum(axis=-1, keepdims=True)
    mean = np.where(known, values, 0.0).sum(axis=-1, keepdims=True) / np.maximum(count, 1)
    return np.where(known, values, np.where(count > 0, mean, otherwise))
