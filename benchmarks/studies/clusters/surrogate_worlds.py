"""Simulated trainings fitted to the workloads that ship, on clusters for them.

A workload (dynamix_ps/sim/cluster/fitted.py) says how a real training goes at its tuned rate and batch. Here it has
FIRST_SIZE samples on each of eight workers, and goes on for LONGER times the iterations that it was tuned for. The
target is what it reaches after TARGET_PART of them with the first sizes. The clusters are made for the noise scale
half-way to the target (agent/clusters.py), so batch sizes pay as in the simulator's own trainings. All of this is
chosen by us.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from benchmarks.studies.agent.clusters import cluster_for
from benchmarks.studies.clusters.unsteady import unsteady
from dynamix_ps.sim.cluster.fitted import FITTED
from dynamix_ps.sim.cluster.quadratic import Moments, Spectrum, noise_batches, power_law, trained, untrained
from dynamix_ps.sim.scenario.load import Scenario, load_scenario
from dynamix_ps.sim.scenario.parts import Bounds, TrainingModel, Workload, WorkloadName

WORKERS, FIRST_SIZE = 8, 24
BOUNDS = Bounds(min=3, max=512)
LONGER, TARGET_PART = 4.0, 0.6
LR_RULES: dict[str, Literal["sqrt", "adascale"]] = {"resnet-sgd": "adascale"}  # of the others: sqrt
MORE = 8.0  # times the samples until the target, after which a run that has not got there has failed


def worlds() -> list[Scenario]:
    """Every workload on H-level 8, which is constant, and where each link and speed changes by itself (unsteady.py)."""
    clusters = (load_scenario("h-level-8"), unsteady()[0])
    return [_world(name, cluster) for name in FITTED for cluster in clusters]


def _world(name: WorkloadName, cluster: Scenario) -> Scenario:
    spectrum = _spectrum(name)
    iterations = TARGET_PART * LONGER * FITTED[name].iterations
    reached, halfway = (_after(spectrum, part * iterations) for part in (1.0, 0.5))
    tuned_batch = float(WORKERS * FIRST_SIZE)
    noise_scale = tuned_batch * noise_batches(spectrum, halfway).item()
    budget = MORE * iterations * tuned_batch
    training = TrainingModel(
        workload=Workload(name=name, tuned_batch=tuned_batch, budget_samples=budget),
        gap=0.0,  # of what a large batch does to the test set, these trainings know nothing
    )
    learned = 1 - reached.loss.item()
    return cluster_for(cluster, noise_scale, cluster.window).model_copy(
        update={
            "name": f"{name}-{cluster.name}",
            "initial_batch": FIRST_SIZE,
            "batch": BOUNDS,
            "lr_rule": LR_RULES.get(name, "sqrt"),
            "training": training,
            "target_accuracy": training.chance + (training.best_accuracy - training.chance) * learned,
            "max_windows": round(MORE * iterations / cluster.window),
        }
    )


def _spectrum(name: WorkloadName) -> Spectrum:
    fitted = FITTED[name]
    numbers = (fitted.steepest, fitted.tail, fitted.floor, fitted.floor_tail)
    return power_law(*(np.array([one], dtype=np.float32) for one in numbers))


def _after(spectrum: Spectrum, iterations: float) -> Moments:
    """At the tuned rate and batch."""
    one = np.ones(1, dtype=np.float32)
    return trained(spectrum, untrained(spectrum), one, one, iterations * one)
