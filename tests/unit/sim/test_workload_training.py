"""Simulated trainings that depend on the learning rate: what a wrong one costs, and what repairs it."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest

from dynamix_ps.config.schema import PolicySection
from dynamix_ps.errors import ConfigError
from dynamix_ps.sim.cluster.fitted import FITTED
from dynamix_ps.sim.cluster.parameters import Parameters, join, parameters_of
from dynamix_ps.sim.cluster.simulator import Simulator
from dynamix_ps.sim.contest.evaluate import Cell, evaluate
from dynamix_ps.sim.scenario.load import Scenario, dump_scenario, load_scenario
from dynamix_ps.sim.scenario.parts import WorkloadName

RUNS = 3


def scenario(name: str = "cnn-sgd", workers: int = 3, **workload: float) -> Scenario:
    """Three equal workers, first sizes of 64."""
    return Scenario.model_validate(
        {
            "name": "t",
            "workers": ({"count": workers},),
            "initial_batch": 64,
            "training": {"workload": {"name": name, **workload}},
            "target_accuracy": 0.9,
        }
    )


def started(given: Scenario | Parameters) -> Simulator:
    parameters = parameters_of([given] * RUNS) if isinstance(given, Scenario) else given
    return Simulator(parameters, np.random.default_rng(0))


def finished(given: Scenario, size: int = 64) -> Simulator:
    simulator = started(given)
    while not simulator.truncated.any():
        simulator.step(np.full((RUNS, 3), size))
    return simulator


def excess(name: str, rate: float = 1.0, size: int = 64) -> float:
    return float(finished(scenario(name, rate=rate), size).excess.mean())


@pytest.mark.parametrize("name", FITTED)
def test_a_rate_four_times_too_small_is_behind_half_way_and_one_too_large_ends_higher(name: WorkloadName) -> None:
    half = 192 * FITTED[name].iterations / 2
    behind, tuned = (finished(scenario(name, rate=rate, budget_samples=half)) for rate in (0.25, 1.0))
    assert (behind.excess > 1.01 * tuned.excess).all()
    assert excess(name, rate=4.0) > excess(name)


def test_a_network_whose_rate_is_far_too_large_dies_for_good() -> None:
    simulator = started(scenario(rate=4.0))
    for _ in range(4):
        simulator.step(simulator.sizes)
    assert simulator.workload.dead.all()
    assert (simulator.excess == 1).all()
    for _ in range(5):
        window = simulator.step(simulator.sizes)
    assert simulator.workload.dead.all()
    assert window.global_accuracy == pytest.approx(0.1, abs=0.02)
    simulator.restart(np.array([True, False, False]))
    assert simulator.workload.dead.tolist() == [False, True, True]


def test_averaged_weights_are_better_at_a_large_rate_and_hardly_at_a_small_one() -> None:
    gains = []
    for rate in (1.0, 0.125):
        simulator = finished(scenario("cnn-adam", rate=rate, budget_samples=400_000))
        gains.append(float((simulator.excess / simulator.workload.averaged).mean()))
    assert gains[0] > 1.3 > 1.1 > gains[1] >= 1


def test_larger_batches_have_less_noise_and_adam_takes_longer_steps_with_them() -> None:
    assert excess("cnn-sgd", size=256) > 0  # fewer iterations, the same samples
    for name, longer in (("cnn-adam", True), ("cnn-sgd", False)):
        simulator = started(scenario(name))
        rates = [simulator.workload._rate(np.full(RUNS, batch)) for batch in (192.0, 768.0)]
        parameters = simulator.parameters
        rule = (1 + simulator.noise_scale / 192) / (1 + simulator.noise_scale / 768)  # adascale, the default
        ratio = (rates[1] / rates[0]) / rule**parameters.rate_power
        assert bool((ratio > 1.01).all()) is longer


def test_measured_gradients_tell_the_noise_scale() -> None:
    simulator = started(join([parameters_of([scenario("cnn-sgd", budget_samples=1e7)] * 200)]))
    for _ in range(10):
        before = simulator.noise_scale
        window = simulator.step(simulator.sizes)
    measured = float(window.noise_variance.mean() / window.noise_signal.mean())
    assert measured == pytest.approx(float(before.mean()), rel=0.25)


def test_a_training_ends_after_its_budget_and_reports_how_much_of_it_is_done() -> None:
    simulator = started(scenario(budget_samples=192 * 20 * 4))
    shown = []
    while not simulator.truncated.any():
        window = simulator.step(simulator.sizes)
        shown.append(np.asarray(window.trained_ratio).tolist())
    assert shown == [[0.25] * RUNS, [0.5] * RUNS, [0.75] * RUNS, [1.0] * RUNS]
    assert np.asarray(window.lr_ratio).tolist() == [1.0] * RUNS
    record = simulator.views()[0].reported[0]
    assert (record.lr_ratio, record.trained_ratio) == (1.0, 1.0)


def test_without_workload_no_end_is_known() -> None:
    simulator = started(parameters_of([load_scenario("homogeneous")] * RUNS))
    window = simulator.step(simulator.sizes)
    assert np.isnan(window.trained_ratio).all()
    assert np.isnan(window.lr_ratio).all()
    assert not simulator.truncated.any()


def test_a_cluster_without_workload_is_the_same_beside_one_that_has_one() -> None:
    plain = load_scenario("homogeneous").with_workers(3)
    alone, beside = started(parameters_of([plain] * 2)), started(parameters_of([plain, scenario()]))
    for _ in range(5):
        one, both = alone.step(alone.sizes), beside.step(beside.sizes)
    assert beside.progress[0] == alone.progress[0]
    assert both.global_loss[0] == one.global_loss[0]
    assert (np.isnan(both.trained_ratio).tolist(), alone.excess[0]) == ([True, False], beside.excess[0])


def test_a_run_that_does_not_reach_the_target_ends_with_its_budget() -> None:
    given = scenario(budget_samples=192 * 20 * 3).model_copy(update={"target_accuracy": 0.949})
    outcome = evaluate(Cell(given, PolicySection(name="static"), seeds=RUNS))
    assert outcome.windows.tolist() == [3] * RUNS
    assert not outcome.reached.any()


def test_the_section_of_a_scenario_is_checked_and_written_back() -> None:
    given = scenario("gpt-adamw", rate=0.5, tuned_batch=48.0)
    assert Scenario.model_validate(given.model_dump()) == given
    assert "name: gpt-adamw" in dump_scenario(given)
    grown = given.with_workers(6).training.workload
    assert grown is not None
    assert (grown.tuned_batch, grown.budget_samples) == (96.0, None)
    assert set(get_args(WorkloadName)) == set(FITTED)


def test_an_unknown_workload_is_refused_with_its_line(tmp_path: Any) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("name: w\ntraining:\n  workload: {name: vgg}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"wrong\.yaml:3: training\.workload\.name: .*cnn-sgd"):
        load_scenario(file)
