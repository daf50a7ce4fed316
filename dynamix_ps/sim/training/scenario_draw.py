"""Draws clusters to train on from given scenarios, instead of from sim/cluster/randomise.py."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynamix_ps.sim.cluster.parameters import Parameters, parameters_of
from dynamix_ps.sim.scenario.load import Scenario
from dynamix_ps.sim.training.trainer import Draw


def draw_from(scenarios: Sequence[Scenario]) -> Draw:
    """Every cluster is one of these scenarios, all equally likely, with the number of workers asked for."""

    def draw(rng: np.random.Generator, environments: int, n_workers: int) -> Parameters:
        chosen = rng.integers(len(scenarios), size=environments)
        return parameters_of(tuple(scenarios[index].with_workers(n_workers) for index in chosen))

    return draw
