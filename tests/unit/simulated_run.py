"""Recorded runs made by the simulator, so that the right result of a calibration is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynamix_ps.config.schema import BatchBounds, Cluster, Config, WorkerSection
from dynamix_ps.run_record.evaluations import Evaluation
from dynamix_ps.sim.cluster.parameters import parameters_of
from dynamix_ps.sim.cluster.simulator import Simulator
from dynamix_ps.sim.recorded import RecordedDecision, RecordedRun
from dynamix_ps.sim.scenario.load import Scenario
from dynamix_ps.sim.scenario.parts import Bounds, SimulatedWorker, TrainingModel

TARGET = 0.8
# overlap hides nothing, as in what calibration finds; the rest is free
TRUTH = Scenario(
    name="truth",
    workers=(
        SimulatedWorker(fixed_s=0.004, per_sample_s=1.2e-4, bytes_per_s=4e8, latency_s=1e-4),
        SimulatedWorker(fixed_s=0.004, per_sample_s=2.6e-4, bytes_per_s=4e8, latency_s=1e-4),
        SimulatedWorker(fixed_s=0.006, per_sample_s=5.0e-4, bytes_per_s=2e8, latency_s=1e-4),
    ),
    model_bytes=8e5,
    overlap=0.0,
    jitter=0.25,
    batch=Bounds(min=16, max=512),
    initial_batch=128,
    window=20,
    lr_rule="none",
    training=TrainingModel(
        tuning=0.6, noise_scale=250.0, noise_growth=0.7, progress_scale=30.0, decay=1.2, best_accuracy=0.96, gap=0.2
    ),
    target_accuracy=TARGET,
)


def simulated_run(
    name: str, sizes: Sequence[int], windows: int = 40, scenario: Scenario = TRUTH, seed: int = 0
) -> RecordedRun:
    """A run under fixed sizes; the test accuracy, noise of 0.3 % on it, is evaluated after every window."""
    rng = np.random.default_rng([seed, *sizes])
    simulator = Simulator(parameters_of((scenario,)), rng)
    decided, evaluations = [], []
    for window in range(windows):
        simulator.step(np.array([sizes]))
        decided.append(RecordedDecision(simulator.views()[0], tuple(sizes)))
        accuracy = float(simulator.test_accuracy[0]) + 0.003 * rng.standard_normal()
        iteration = (window + 1) * scenario.window
        evaluations.append(Evaluation(iteration, 0, float(simulator.time_s[0]), {"accuracy": accuracy}))
    config = Config(
        name=name,
        cluster=Cluster(workers=tuple(WorkerSection(batch=size) for size in sizes)),
        batch=BatchBounds(min=16, max=512),
        window=scenario.window,
        target_accuracy=TARGET,
    )
    return RecordedRun(name, config, tuple(decided), tuple(evaluations))
