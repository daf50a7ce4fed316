"""How well a calibrated scenario predicts real runs: iteration times, and time to an accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from dynamix_ps.sim.calibration.calibrate import calibrate
from dynamix_ps.sim.calibration.fit_cost import predict_times
from dynamix_ps.sim.calibration.fitting import Array
from dynamix_ps.sim.calibration.series import Series, crossing
from dynamix_ps.sim.cluster.parameters import parameters_of
from dynamix_ps.sim.cluster.simulator import Simulator
from dynamix_ps.sim.scenario.load import Scenario

SEEDS = 16
LONGEST = 4  # longest simulation, as a multiple of the real run


@dataclass(frozen=True, slots=True)
class Prediction:
    """One run: error of the iteration times, and seconds of training to the target; NaN: not reached."""

    name: str
    windows: int
    iteration_error: float  # median over windows of |predicted - measured| / measured
    measured_s: float
    predicted_s: float  # median over simulated runs

    @property
    def time_error(self) -> float:
        """Relative error of the time to the target; NaN if either run does not reach it."""
        return abs(self.predicted_s / self.measured_s - 1)


def predict(scenario: Scenario, run: Series, rng: np.random.Generator) -> Prediction:
    """Simulate the scenario with the sizes of a real run, and compare."""
    iteration_s = predict_times(scenario, run.sizes).iteration_s
    time_s, accuracy = simulate(scenario, run, rng)
    return Prediction(
        name=run.name,
        windows=len(run.iteration_s),
        iteration_error=float(np.median(np.abs(iteration_s / run.iteration_s - 1))),
        measured_s=run.time_to(scenario.target_accuracy),
        predicted_s=time_to(scenario.target_accuracy, time_s, accuracy),
    )


def leave_one_out(scenario: Scenario, runs: Sequence[Series]) -> list[Scenario]:
    """For every run, the scenario calibrated with all other runs."""
    return [calibrate(scenario, [other for other in runs if other is not run]) for run in runs]


def simulate(scenario: Scenario, run: Series, rng: np.random.Generator) -> tuple[Array, Array]:
    """(seconds of training, test accuracy) under the sizes of a run; after its end, under its last sizes.

    Arrays are (windows + 1, SEEDS), from the start until the run has ended and all seeds have reached the target.
    """
    simulator = Simulator(parameters_of((scenario,) * SEEDS), rng)
    low, high = simulator.parameters.low[0], simulator.parameters.high[0]
    k, end = scenario.window, len(run.sizes_at)
    time_s, accuracy = [simulator.time_s.copy()], [simulator.test_accuracy]
    for window in range(LONGEST * -(-end // k)):
        if window * k >= end and simulator.done.all():
            break
        sizes = run.sizes_at[min(window * k + k // 2, end - 1)]
        simulator.step(np.tile(np.clip(np.rint(sizes), low, high).astype(np.int64), (SEEDS, 1)))
        time_s.append(simulator.time_s.copy())
        accuracy.append(simulator.test_accuracy)
    return np.array(time_s), np.array(accuracy, dtype=np.float64)


def time_to(target: float, time_s: Array, accuracy: Array) -> float:
    """Median over columns of the time when the accuracy first reaches the target; NaN if most columns do not."""
    reached_s = [crossing(target, times, values) for times, values in zip(time_s.T, accuracy.T, strict=True)]
    middle = float(np.median(np.nan_to_num(reached_s, nan=np.inf)))
    return middle if np.isfinite(middle) else float("nan")


def table(title: str, predictions: Sequence[Prediction]) -> Table:
    """The predictions as a table; unknown values are `-`."""
    result = Table(title=title)
    result.add_column("run", overflow="fold")
    for column in ("windows", "iteration\noff by", "s to\ntarget", "simulated", "off by"):
        result.add_column(column, justify="right", no_wrap=True)
    for one in predictions:
        seconds = (f"{value:.1f}" if np.isfinite(value) else "-" for value in (one.measured_s, one.predicted_s))
        error = f"{one.time_error:.1%}" if np.isfinite(one.time_error) else "-"
        result.add_row(one.name, str(one.windows), f"{one.iteration_error:.1%}", *seconds, error)
    return result
