"""Trainings by the learning rate drawn at random, on the clusters of cluster/randomise.py.

Every cluster has one of the workloads, changed a little, for one to six times the iterations for which its rate is
tuned. In two thirds of them the script's rate, and in a third the first batch, is not the tuned one, by up to a factor
of 8 and of 4. All of this is chosen by us.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from dynamix_ps.sim.cluster.fitted import FITTED, Fitted
from dynamix_ps.sim.cluster.parameters import Parameters
from dynamix_ps.sim.cluster.randomise import draw
from dynamix_ps.sim.cluster.workload_fields import fields_of
from dynamix_ps.sim.scenario.parts import WorkloadName

LONGEST = 6.0  # times the iterations for which the rate is tuned
WRONG_RATE, WRONG_BATCH = 8.0, 4.0  # by so much, either way
RATES, BATCHES = 2 / 3, 1 / 3  # part of the clusters in which they are wrong
SPREAD = 0.2  # of the logarithms of a workload's numbers


def draw_workloads(
    rng: np.random.Generator,
    environments: int,
    n_workers: int,
    window: int = 20,
    names: Sequence[WorkloadName] = tuple(FITTED),
) -> Parameters:
    """`environments` clusters of `n_workers` workers each, whose trainings are like those of `names`."""
    clusters = draw(rng, environments, n_workers, window)

    def wrong(largest: float, part: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        off = np.exp(rng.uniform(-np.log(largest), np.log(largest), environments))
        return np.where(rng.random(environments) < part, off, 1.0)

    workloads = [_like(FITTED[names[index]], rng) for index in rng.integers(len(names), size=environments)]
    tuned_batch = clusters.reference_batch * wrong(WRONG_BATCH, BATCHES)
    longer = np.exp(rng.uniform(0, np.log(LONGEST), environments))
    budget = tuned_batch * longer * np.array([one.iterations for one in workloads])
    fields = fields_of(workloads, wrong(WRONG_RATE, RATES), tuned_batch, budget)
    return dataclasses.replace(clusters, **fields)


def _like(fitted: Fitted, rng: np.random.Generator) -> Fitted:
    """A workload like this one."""
    steeper, higher = np.exp(SPREAD * rng.standard_normal(2))
    return dataclasses.replace(fitted, steepest=fitted.steepest * float(steeper), floor=fitted.floor * float(higher))
