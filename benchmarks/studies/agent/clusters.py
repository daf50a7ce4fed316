"""The clusters of the study of the agent: scenarios that ship, for trainings of another size. Pure.

Scenarios that ship are made for a training whose gradient noise scale is about NOISE_SCALE half-way, and for windows of
20 iterations. A rehearsed training has smaller batches and fewer iterations. So what a scenario counts in samples is
counted relative to the noise scale, and what it counts in seconds relative to the window:

- With a noise scale r times as large, a sample takes 1/r times as long, and tiles, cliffs and memory begin at r times
  as many samples. So the batch sizes that pay are r times as large, and an iteration with them lasts as long as before.
- With windows of q times as many iterations, changes come and go in q times the time, and a machine becomes hot in q
  times the time.
"""

from __future__ import annotations

from typing import Any

from dynamix_ps.sim.scenario.load import Scenario
from dynamix_ps.sim.scenario.parts import SimulatedWorker

NOISE_SCALE = 1000.0  # of the simulator's trainings half-way (dynamix_ps/sim/scenario/parts.py), rounded
_TIMES = ("at_s", "until_s", "every_s", "for_s")


def cluster_for(scenario: Scenario, noise_scale: float, window: int) -> Scenario:
    """The cluster for a training with this noise scale and windows of so many iterations.

    `model_bytes` stays that of the scenario: times of the cluster are not those of the model that is trained.
    """
    samples, time = noise_scale / NOISE_SCALE, window / scenario.window
    return scenario.model_copy(
        update={
            "workers": tuple(_scaled(worker, samples, time) for worker in scenario.workers),
            "drift_s": scenario.drift_s * time,
            "trace": tuple(_in_time(event, time) for event in scenario.trace),
            "bursts": tuple(_in_time(burst, time) for burst in scenario.bursts),
            "window": window,
            "model_bytes": scenario.model_bytes,
        }
    )


def _scaled(worker: SimulatedWorker, samples: float, time: float) -> SimulatedWorker:
    changed: dict[str, Any] = {
        "per_sample_s": worker.per_sample_s / samples,
        "memory_limit": worker.memory_limit * samples,
    }
    if worker.tiles is not None:
        changed["tiles"] = worker.tiles.model_copy(update={"samples": max(round(worker.tiles.samples * samples), 2)})
    if worker.cliff is not None:
        above = worker.cliff.above_samples * samples
        changed["cliff"] = worker.cliff.model_copy(update={"above_samples": above})
    if worker.heat is not None:
        constant_s = worker.heat.time_constant_s * time
        changed["heat"] = worker.heat.model_copy(update={"time_constant_s": constant_s})
    return worker.model_copy(update=changed)


def _in_time(change: Any, time: float) -> Any:
    names = [name for name in _TIMES if getattr(change, name, None) is not None]
    return change.model_copy(update={name: getattr(change, name) * time for name in names})
