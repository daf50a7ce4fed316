"""How well a calibrated scenario foretells real runs: iteration times, and time to an accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from dynamix_ps.sim.calibrate import calibrate
from dynamix_ps.sim.fit_cost import predict_times
from dynamix_ps.sim.parameters import parameters_of
from dynamix_ps.sim.scenario import Scenario
from dynamix_ps.sim.series import Series
from dynamix_ps.sim.simulator import Simulator

SEEDS = 16
LONGEST = 4  # simulated at most so many times as long as the real run


@dataclass(frozen=True, slots=True)
class Prediction:
    """One run: how far off the iteration times are, and seconds of training to the target; NaN: never reached."""

    name: str
    windows: int
    iteration_error: float  # median over windows of |predicted - measured| / measured
    measured_s: float
    predicted_s: float  # median over simulated runs

    @property
    def time_error(self) -> float:
        """Of the time to the target, relative to the measured one; NaN where either never reached it."""
        return abs(self.predicted_s / self.measured_s - 1)


def predict(scenario: Scenario, run: Series, rng: np.random.Generator) -> Prediction:
    """Simulate the scenario with the sizes of a real run, and compare."""
    iteration_s = predict_times(scenario, run.sizes).iteration_s
    return Prediction(
        name=run.name,
        windows=len(run.iteration_s),
        iteration_error=float(np.median(np.abs(iteration_s / run.iteration_s - 1))),
        measured_s=run.time_to(scenario.target_accuracy),
        predicted_s=simulated_time_s(scenario, run, rng),
    )


def leave_one_out(scenario: Scenario, runs: Sequence[Series], rng: np.random.Generator) -> list[Prediction]:
    """Every run predicted by a scenario that was calibrated with all the others."""
    return [predict(calibrate(scenario, [other for other in runs if other is not run]), run, rng) for run in runs]


def simulated_time_s(scenario: Scenario, run: Series, rng: np.random.Generator) -> float:
    """Seconds to the target accuracy with the run's sizes, its last ones from its end on; NaN if most never get there.

    Median over SEEDS simulated runs. Within a window, time is interpolated by the accuracy.
    """
    simulator = Simulator(parameters_of((scenario,) * SEEDS), rng)
    low, high = simulator.parameters.low[0], simulator.parameters.high[0]
    k, end = scenario.window, len(run.sizes_at)
    reached_s = np.full(SEEDS, np.nan)
    for window in range(LONGEST * (1 + end // k)):
        before, before_s = simulator.test_accuracy, simulator.time_s.copy()
        now = run.sizes_at[min(window * k + k // 2, end - 1)]
        simulator.step(np.tile(np.clip(np.rint(now), low, high).astype(np.int64), (SEEDS, 1)))
        after = simulator.test_accuracy
        newly = np.isnan(reached_s) & (after >= scenario.target_accuracy)
        part = np.clip((scenario.target_accuracy - before) / np.maximum(after - before, 1e-9), 0, 1)
        reached_s[newly] = (before_s + part * (simulator.time_s - before_s))[newly]
        if not np.isnan(reached_s).any():
            break
    return float(np.median(np.nan_to_num(reached_s, nan=np.inf))) if np.isfinite(reached_s).any() else float("nan")


def table(title: str, predictions: Sequence[Prediction]) -> Table:
    """For people; unknown is `-`."""
    result = Table(title=title)
    for column in ("run", "windows", "iteration time off by", "measured s to target", "simulated s", "off by"):
        result.add_column(column, justify="left" if column == "run" else "right")
    for one in predictions:
        seconds = (f"{value:.1f}" if np.isfinite(value) else "-" for value in (one.measured_s, one.predicted_s))
        error = f"{one.time_error:.1%}" if np.isfinite(one.time_error) else "-"
        result.add_row(one.name, str(one.windows), f"{one.iteration_error:.1%}", *seconds, error)
    return result
