"""The fields of Parameters that describe effects: of a scenario, and of clusters without any."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynamix_ps.sim.scenario.load import Scenario

# field: (section of a worker in a scenario, key there, value without the effect)
_OF_WORKERS: dict[str, tuple[str, str, float]] = {
    "tile_samples": ("tiles", "samples", 1),
    "tile_part": ("tiles", "part", 0),
    "cliff_samples": ("cliff", "above_samples", np.inf),
    "cliff_slope": ("cliff", "slope", 1),
    "heat_slow_down": ("heat", "slow_down", 1),
    "heat_s": ("heat", "time_constant_s", np.inf),
    "heat_load": ("heat", "sustained_load", 0),
}


def no_effects(environments: int, n_workers: int) -> dict[str, Any]:
    """Fields of clusters that are as a straight line has them."""
    shape = (environments, n_workers)
    neutral = {name: np.full(shape, value, dtype=np.float32) for name, (_, _, value) in _OF_WORKERS.items()}
    return {
        **neutral,
        "host": np.tile(np.arange(n_workers), (environments, 1)),
        "contention": np.zeros(environments, dtype=np.float32),
    }


def effect_fields(scenario: Scenario) -> dict[str, Any]:
    """Fields of one environment."""
    fields = no_effects(1, scenario.n_workers)
    hosts: dict[str, int] = {}
    for rank, worker in enumerate(scenario.each_worker):
        for name, (section, key, _) in _OF_WORKERS.items():
            if (given := getattr(worker, section)) is not None:
                fields[name][0, rank] = getattr(given, key)
        if worker.host is not None:
            fields["host"][0, rank] = hosts.setdefault(worker.host, rank)
    fields["contention"][:] = scenario.contention
    return fields
