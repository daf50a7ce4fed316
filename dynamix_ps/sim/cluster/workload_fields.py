"""The fields of Parameters that describe training by the learning rate: of a scenario, and of clusters without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dynamix_ps.sim.cluster.fitted import FITTED, Fitted
from dynamix_ps.sim.cluster.quadratic import MODES, Reals, power_law
from dynamix_ps.sim.scenario.load import Scenario


def no_workload(environments: int) -> dict[str, Any]:
    """Fields of clusters whose training follows learning.py."""
    modes = {name: np.zeros((environments, MODES), dtype=np.float32) for name in ("curvature", "start", "mode_noise")}
    return {
        **modes,
        "by_workload": np.zeros(environments, dtype=bool),
        "adaptive": np.zeros(environments, dtype=bool),
        "rate_power": np.ones(environments, dtype=np.float32),
        "script_rate": np.ones(environments, dtype=np.float32),
        "tuned_batch": np.ones(environments, dtype=np.float32),
        "budget_samples": np.full(environments, np.inf, dtype=np.float32),
    }


def workload_fields(scenario: Scenario) -> dict[str, Any]:
    """Fields of one environment."""
    chosen = scenario.training.workload
    if chosen is None:
        return no_workload(1)
    fitted = FITTED[chosen.name]
    batch = chosen.tuned_batch or sum(scenario.initial_sizes)
    budget = chosen.budget_samples or fitted.iterations * batch
    return fields_of([fitted], *(np.array([value], dtype=np.float32) for value in (chosen.rate, batch, budget)))


def fields_of(
    workloads: Sequence[Fitted], script_rate: Reals, tuned_batch: Reals, budget_samples: Reals
) -> dict[str, Any]:
    """Fields of one environment per workload; the others are (E,)."""

    def each(name: str) -> Reals:
        return np.array([getattr(one, name) for one in workloads], dtype=np.float32)

    spectrum = power_law(*(each(name) for name in ("steepest", "tail", "floor", "floor_tail")))
    return {
        "curvature": spectrum.curvature,
        "start": spectrum.start,
        "mode_noise": spectrum.noise,
        "by_workload": np.ones(len(workloads), dtype=bool),
        "adaptive": np.array([one.adaptive for one in workloads]),
        "rate_power": each("rate_power"),
        "script_rate": script_rate.astype(np.float32),
        "tuned_batch": tuned_batch.astype(np.float32),
        "budget_samples": budget_samples.astype(np.float32),
    }
