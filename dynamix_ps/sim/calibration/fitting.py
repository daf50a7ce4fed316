"""Robust least squares with weak priors, for models that compute in float32. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from dynamix_ps.sim.cluster.parameters import Parameters

Array = NDArray[np.float64]
_SHIFT = 10.0


@dataclass(frozen=True, slots=True)
class Prior:
    """Of several unknowns: start, spread around the start, and bounds."""

    start: Array
    spread: Array
    low: Array
    high: Array


def robust_fit(residuals: Callable[[Array], Array], prior: Prior) -> Array:
    """The x that minimises the soft-L1 loss of the residuals and of (x - start) / spread.

    Solved for z = _SHIFT + (x - start) / spread: the solver's steps for derivatives are relative to z, and then far
    above the precision of the models.
    """

    def x_of(z: Array) -> Array:
        return np.asarray(np.clip(prior.start + prior.spread * (z - _SHIFT), prior.low, prior.high))

    def with_prior(z: Array) -> Array:
        return np.concatenate((residuals(x_of(z)), z - _SHIFT))

    bounds = tuple(_SHIFT + (edge - prior.start) / prior.spread for edge in (prior.low, prior.high))
    first = np.full_like(prior.start, _SHIFT)
    return x_of(least_squares(with_prior, first, bounds=bounds, loss="soft_l1", diff_step=1e-3).x)


def with_values(parameters: Parameters, values: Mapping[str, Any]) -> Parameters:
    """One environment with some values replaced: by a number, or by one number per worker."""
    arrays: dict[str, Any] = {name: np.asarray(value, dtype=np.float32)[None] for name, value in values.items()}
    return dataclasses.replace(parameters, **arrays)
