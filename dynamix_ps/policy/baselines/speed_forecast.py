"""Forecasts every worker's speed in the next window from its past speeds, CPU and memory use. Pure.

LB-BSP (arXiv 1806.02508) forecasts with NARX, a small recurrent network that is trained before the job on traces of the
same machines. There are no such traces here, so a linear model with the same inputs (ARX) replaces it. It is
fitted while training runs:

    y = a_1 y' + a_2 y'' + a_3 c' + a_4 m'

y is the change of log speed from one window to the next, y' and y'' the two changes before it, c' and m' the newest
changes of the CPU seconds per second and of the memory use. A ridge penalty pulls all coefficients to 0, which
forecasts that speeds stay. From steady noise the model learns a_1 < 0: a speed that has just jumped returns. Old
windows lose weight, because clusters change. The linear model and every constant are chosen by us.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.policy.model.compute_times import Array

FORGETTING = 0.98  # weight of a window, one window later
RIDGE = 0.02  # as much as eight windows of 5 % noise
LARGEST_CHANGE = math.log(2)  # of log speed in a forecast
LARGEST_USE_CHANGE = 1.0  # larger changes are cut off here
_USES = 2  # CPU, memory
_INPUTS = 2 + _USES


class SpeedForecast:
    """Models of all workers. Call `observe` with every window."""

    def __init__(self, n_workers: int) -> None:
        self._products = np.zeros((n_workers, _INPUTS, _INPUTS))  # sum of x x' with forgetting
        self._answers = np.zeros((n_workers, _INPUTS))  # sum of x y with forgetting
        self._inputs = np.zeros((n_workers, _INPUTS))  # x of the next window
        self._log_speed = np.full(n_workers, np.nan)
        self._uses = np.full((n_workers, _USES), np.nan)

    def forget(self, who: NDArray[np.bool_]) -> None:
        """Forget some workers, (workers,)."""
        for zero in (self._products, self._answers, self._inputs):
            zero[who] = 0.0
        for unknown in (self._log_speed, self._uses):
            unknown[who] = np.nan

    def observe(self, speeds_per_s: Array, uses: Array) -> None:
        """Learn from a window.

        Args:
            speeds_per_s: (workers,), above 0; NaN where not measured: the model of that worker stays as it is.
            uses: (workers, 2), CPU seconds per second and part of the memory in use; NaN (unknown) counts as unchanged.
        """
        seen = np.isfinite(speeds_per_s)
        log_speed = np.log(speeds_per_s)
        change = np.where(seen & np.isfinite(self._log_speed), log_speed - self._log_speed, 0.0)
        x, row = self._inputs, seen[:, None]
        self._products = np.where(
            row[..., None], FORGETTING * self._products + x[:, :, None] * x[:, None], self._products
        )
        self._answers = np.where(row, FORGETTING * self._answers + x * change[:, None], self._answers)
        use_change = np.clip(
            np.nan_to_num(uses - self._uses, posinf=0, neginf=0), -LARGEST_USE_CHANGE, LARGEST_USE_CHANGE
        )
        self._inputs = np.where(row, np.column_stack((change, x[:, 0], use_change)), x)
        self._log_speed = np.where(seen, log_speed, self._log_speed)
        self._uses = np.where(row & np.isfinite(uses), uses, self._uses)

    def next_per_s(self) -> Array:
        """Speed of every worker in the next window; NaN for workers never measured."""
        coefficients = np.linalg.solve(self._products + RIDGE * np.eye(_INPUTS), self._answers[..., None])[..., 0]
        change = np.clip((coefficients * self._inputs).sum(axis=-1), -LARGEST_CHANGE, LARGEST_CHANGE)
        return np.asarray(np.exp(self._log_speed + change))
