"""Robust least squares with weak priors, for models that compute in float32. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

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


class Unknown(NamedTuple):
    """One of them by its name."""

    start: float
    spread: float  # of the prior around the start
    low: float
    high: float
    log: bool = False  # fit its logarithm; `spread` is then in logarithms


def fitted_values(
    unknowns: Mapping[str, Unknown], residuals: Callable[[Mapping[str, float]], Array]
) -> dict[str, float]:
    """The values of the unknowns that fit best; see `robust_fit`.

    Args:
        residuals: of values by name.
    """
    logs = np.array([one.log for one in unknowns.values()])
    start, spread, low, high = (
        np.array([getattr(one, part) for one in unknowns.values()]) for part in ("start", "spread", "low", "high")
    )
    start, low, high = (np.where(logs, np.log(np.where(logs, edge, 1)), edge) for edge in (start, low, high))

    def values(x: Array) -> dict[str, float]:
        return dict(zip(unknowns, np.where(logs, np.exp(np.where(logs, x, 0)), x).tolist(), strict=True))

    return values(robust_fit(lambda x: residuals(values(x)), Prior(start, spread, low, high)))


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
