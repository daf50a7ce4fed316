"""Training that depends on the learning rate: a noisy quadratic with a power-law spectrum. Pure.

Zhang et al. (arXiv 1907.04164): stochastic gradient descent on sum_j h_j x_j^2 / 2, whose gradients have independent
noise, has closed forms for every mode j. Let l_j be the expected loss of the mode over the whole loss at the start,
a_j = (tuned learning rate) h_j its curvature, and s the learning rate over the tuned one. One iteration of global batch
B gives

    l_j <- (1 - s a_j)^2 l_j + s^2 n_j / B              B in tuned batches, n_j: noise of one of them at the tuned rate

So a rate that is too small is slow in proportion; a large one ends on a noise floor proportional to s / B, which decay
removes; beyond s = 2 / a_0 the steepest mode grows, and training diverges. The first part of l_j is the square of the
mean over many trainings, m_j <- r_j m_j with r_j = 1 - s a_j; the second, the variance, is their scatter.

The average of weights with decay g over iterations lags behind in the mean,

    M_j <- g M_j + (1 - g) m_j

and has of the variance the part (that of a stationary autoregressive process; exact for constant s and B)

    (1 - g) / (1 + g) (1 + g r_j) / (1 - g r_j)

so it averages steep modes and hardly flat ones. The gradient noise scale follows from the same quantities,

    N = sum_j (n_j / a_j) / sum_j (a_j l_j)             in tuned batches

MODES modes, each with half of the curvature of the one before, stand for the spectrum. The loss at the start, and the
noise floor at the tuned rate and batch, are powers of the curvature. These shapes are chosen by us; Zhang et al. have
h_j = 1/j.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MODES = 12
AVERAGE_DECAY = np.float32(0.98)  # g
_LARGEST_POWER = np.float32(14.0)  # of e, by which a mean grows in one window
_LARGEST = np.float32(1e6)  # mean; what has diverged so far stays there
_TINY = np.float32(1e-12)
_NEAR = 1e-4  # two ratios, whose geometric sum is that of equal ones

Reals = NDArray[np.floating[Any]]


class Spectrum(NamedTuple):
    """Arrays (..., MODES)."""

    curvature: Reals  # a_j
    start: Reals  # l_j before training; their sum is 1
    noise: Reals  # n_j


class Moments(NamedTuple):
    """Weights by mode, in units whose square is the whole loss at the start; arrays (..., MODES)."""

    mean: Reals  # m_j
    variance: Reals
    average: Reals  # M_j, the mean of the average

    @property
    def modes(self) -> Reals:
        """l_j, (..., MODES)."""
        return np.asarray(self.mean**2 + self.variance)

    @property
    def loss(self) -> Reals:
        """Of the weights themselves, (...,)."""
        return np.asarray(self.modes.sum(axis=-1))


def power_law(steepest: Reals, tail: Reals, floor: Reals, floor_tail: Reals) -> Spectrum:
    """A spectrum from four numbers, (...,) each.

    Args:
        steepest: a_0; training diverges at 2 / a_0 times the tuned rate.
        tail: loss at the start is proportional to a_j^tail.
        floor: loss on which training ends at the tuned rate and batch, over that at the start.
        floor_tail: of that floor, mode j has a part proportional to a_j^floor_tail.
    """
    relative = np.exp2(-np.arange(MODES, dtype=np.float32))
    curvature = np.asarray(steepest)[..., None] * relative
    start = relative ** np.asarray(tail)[..., None]
    start = start / start.sum(axis=-1, keepdims=True)
    part = relative ** np.asarray(floor_tail)[..., None]
    part = part / part.sum(axis=-1, keepdims=True)
    # at s = 1 the stationary variance of a mode is n / (a (2 - a))
    noise = np.asarray(floor)[..., None] * part * curvature * np.maximum(2 - curvature, 0.1)
    return Spectrum(*(one.astype(np.float32) for one in (curvature, start, noise)))


def untrained(spectrum: Spectrum) -> Moments:
    """Before the first iteration."""
    mean = np.sqrt(spectrum.start)
    return Moments(mean, np.zeros_like(mean), mean)


def trained(spectrum: Spectrum, before: Moments, rate: Reals, batches: Reals, iterations: Reals) -> Moments:
    """After so many iterations at a constant rate.

    Args:
        rate: s, (...,).
        batches: B, in tuned batches, (...,).
        iterations: (...,), need not be whole.
    """
    left, count = 1 - rate[..., None] * spectrum.curvature, np.asarray(iterations)[..., None]
    kept = np.exp(np.minimum(count * np.log(np.maximum(np.abs(left), _TINY)), _LARGEST_POWER))
    added = spectrum.noise * (rate**2 / batches)[..., None] * _geometric(left**2, kept**2, np.float32(1), count)
    # what alternates averages to nothing
    falls = np.clip(left, 0, 1)
    old = AVERAGE_DECAY**count
    follows = (1 - AVERAGE_DECAY) * falls * _geometric(falls, np.minimum(kept, 1), AVERAGE_DECAY, count)
    return Moments(
        np.minimum(kept * before.mean, _LARGEST),
        np.minimum(kept**2 * before.variance + added, _LARGEST**2),
        old * before.average + follows * np.minimum(before.mean, _LARGEST),
    )


def _geometric(ratio: Reals, power: Reals, other: np.float32, count: Reals) -> Reals:
    """(ratio^count - other^count) / (ratio - other), with `power` for ratio^count."""
    near = np.abs(ratio - other) < _NEAR
    apart = (power - other**count) / np.where(near, 1, ratio - other)
    return np.where(near, count * other ** (count - 1), apart)


def averaged_loss(spectrum: Spectrum, moments: Moments, rate: Reals) -> Reals:
    """Loss of the average of weights, (...,)."""
    left = np.clip(1 - rate[..., None] * spectrum.curvature, -1, 1)
    part = (1 - AVERAGE_DECAY) / (1 + AVERAGE_DECAY) * (1 + AVERAGE_DECAY * left) / (1 - AVERAGE_DECAY * left)
    return np.asarray((moments.average**2 + moments.variance * part).sum(axis=-1))


def noise_batches(spectrum: Spectrum, moments: Moments) -> Reals:
    """The gradient noise scale in tuned batches, (...,)."""
    signal = (spectrum.curvature * moments.modes).sum(axis=-1)
    variance = (spectrum.noise / np.maximum(spectrum.curvature, _TINY)).sum(axis=-1)
    return np.asarray(variance / np.maximum(signal, _TINY))
