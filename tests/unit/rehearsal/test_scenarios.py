"""The cluster that a cluster file and a scenario describe together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import benchmarks
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import ConfigError, UsageError
from dynamix_ps.rehearsal.scenarios import scenario_for
from dynamix_ps.rehearsal.simulated_cluster import SimulatedCluster
from dynamix_ps.sim.cluster.cost import drawn_times, iteration_times
from dynamix_ps.sim.cluster.parameters import parameters_of
from dynamix_ps.sim.cluster.traces import Conditions
from dynamix_ps.sim.scenario.load import Scenario, load_scenario
from worker_hooks.observe.stopwatch import NewestSum

RECORDED = Path(benchmarks.__file__).parent / "recorded" / "uneven-448.jsonl.gz"


def config(*workers: dict[str, Any], **settings: Any) -> Config:
    return Config.model_validate({"cluster": {"workers": workers}, **settings})


def test_without_a_scenario_speeds_are_those_of_the_cluster_file():
    scenario = scenario_for(config({}, {"speed": 0.25}), None)
    fast, slow = scenario.each_worker
    assert slow.per_sample_s == pytest.approx(4 * fast.per_sample_s)
    assert scenario.architecture == "ps"


def test_a_scenario_gets_the_workers_and_the_data_plane_of_the_cluster_file():
    scenario = scenario_for(config({}, {}, {}, comm="gloo"), "hl-schedule")
    assert (scenario.n_workers, scenario.architecture) == (3, "ring")
    assert len(scenario.trace) == len(load_scenario("hl-schedule").trace)


def test_a_recorded_run_gives_the_speeds_of_its_workers():
    scenario = scenario_for(config({}, {}, {}), str(RECORDED))
    first, *_, last = (worker.per_sample_s for worker in scenario.each_worker)
    assert scenario.name == "uneven-448"
    assert last > 1.5 * first > 0


def test_a_recorded_run_that_counts_something_else_is_refused():
    with pytest.raises(UsageError, match="sizes of this run count samples, those of the cluster file tokens"):
        scenario_for(config({}, {}, {}, batch={"unit": "tokens"}), str(RECORDED))


def test_an_unknown_scenario_is_refused():
    with pytest.raises(ConfigError, match="nowhere"):
        scenario_for(config({}), "nowhere")


def test_single_iterations_have_the_mean_of_the_cost_model():
    scenario = Scenario.model_validate({"name": "t", "workers": ({"count": 4}, {"per_sample_s": 3e-4}), "jitter": 0.1})
    parameters = parameters_of((scenario,))
    conditions = Conditions(parameters, np.random.default_rng(0))
    sizes = np.full((1, 5), 64, dtype=np.float32)
    expected = iteration_times(parameters, conditions, sizes, np.zeros((1, 5), dtype=np.float32))
    rng = np.random.default_rng(1)
    drawn = [
        drawn_times(parameters, conditions, sizes, rng.gumbel(size=(1, 5)).astype(np.float32)) for _ in range(4000)
    ]
    assert np.mean([one.iteration_s for one in drawn]) == pytest.approx(float(expected.iteration_s[0]), rel=0.01)
    compute_s = np.mean([one.compute_s[0] for one in drawn], axis=0)
    assert compute_s == pytest.approx(expected.compute_s[0], rel=0.01)


def test_events_come_at_their_epoch_and_bytes_are_those_of_the_model():
    trace = ({"at_epoch": 1.0, "what": "compute", "workers": (1,), "value": 5.0},)
    scenario = Scenario.model_validate({"name": "t", "workers": ({"count": 2},), "jitter": 0.0, "trace": trace})
    cluster = SimulatedCluster(scenario, 20, np.random.default_rng(0))
    before = cluster.iteration(NewestSum((32, 32), 0.9, 10_000))
    assert before[0].blocked_s == pytest.approx(before[1].blocked_s)
    cluster.iteration(NewestSum((32, 32), 1.0, 10_000))
    after = cluster.iteration(NewestSum((32, 32), 1.1, 10_000))
    assert after[1].compute_s == pytest.approx(5 * before[1].compute_s, rel=1e-4)
    assert after[0].blocked_s > after[1].blocked_s
    large = SimulatedCluster(scenario, 20, np.random.default_rng(0)).iteration(NewestSum((32, 32), 0.9, 10**9))
    assert large[0].duration_s > 0.8 > before[0].duration_s
    assert cluster.spent.tolist() == [96, 96]


@pytest.mark.parametrize(
    ("size_bytes", "named", "hidden"), [(1e6, {}, False), (1e7, {}, True), (1e6, {"overlap": 0.5}, True)]
)
def test_a_gradient_of_one_bucket_hides_behind_nothing(size_bytes: float, named: dict[str, float], hidden: bool):
    """It takes 1 s, and leaves when backward ends."""
    workers = ({"count": 2, "fixed_s": 1.0, "bytes_per_s": size_bytes},)
    scenario = Scenario.model_validate({"name": "t", "workers": workers, "jitter": 0.0, **named})
    cluster = SimulatedCluster(scenario, 20, np.random.default_rng(0), bucket_bytes=4e6)
    blocked_s = cluster.iteration(NewestSum((32, 32), 0.1, int(size_bytes)))[0].blocked_s
    assert blocked_s == pytest.approx(1.1 - hidden * 0.5 * 2 / 3, rel=0.02)


def test_warm_up_lasts_until_the_first_window_is_over():
    scenario = Scenario.model_validate({"name": "t", "workers": ({"count": 2},), "jitter": 0.0, "warm_up": 3.0})
    cluster = SimulatedCluster(scenario, 20, np.random.default_rng(0))
    compute_s = [cluster.iteration(NewestSum((32, 32), 0.1, 10_000))[0].compute_s for _ in range(6)]
    assert compute_s == pytest.approx([3 * compute_s[-1]] * 4 + [compute_s[-1]] * 2, rel=1e-4)


def test_runs_of_one_seed_have_the_same_bursts_whatever_their_sizes():
    bursts = ({"what": "compute", "every_s": 4.0, "for_s": 2.0, "workers": (0,), "value": 10.0},)
    scenario = Scenario.model_validate({"name": "t", "workers": ({"count": 2},), "jitter": 0.0, "bursts": bursts})

    def slow_at(size: int) -> list[bool]:
        """Whether the worker is slow, every tenth of a second."""
        cluster = SimulatedCluster(scenario, 20, np.random.default_rng(0))
        found: list[bool] = []
        while len(found) < 400:
            times = cluster.iteration(NewestSum((size, size), 0.5, 10_000))
            found += [times[0].compute_s > 2 * times[1].compute_s] * (int(10 * cluster.time_s) - len(found))
        return found[:400]

    small, large = slow_at(16), slow_at(512)
    assert 0.1 < np.mean(small) < 0.6
    assert np.mean(np.array(small) == np.array(large)) > 0.85, "an iteration is up to a second long"


def test_a_worker_that_always_computes_becomes_hot_and_one_that_waits_does_not():
    heat = {"slow_down": 2.0, "time_constant_s": 2.0, "sustained_load": 0.6}
    workers = ({"count": 2, "fixed_s": 0.0, "heat": heat},)
    scenario = Scenario.model_validate({"name": "t", "workers": workers, "jitter": 0.0})
    cluster = SimulatedCluster(scenario, 20, np.random.default_rng(0))
    first = cluster.iteration(NewestSum((100, 1000), 0.1, 10_000))
    while cluster.time_s < 20:
        last = cluster.iteration(NewestSum((100, 1000), 0.1, 10_000))
    assert last[0].compute_s == pytest.approx(first[0].compute_s)
    assert last[1].compute_s == pytest.approx(2 * first[1].compute_s, rel=0.02)


def test_a_change_that_comes_back_is_there_for_its_part_of_the_time_beside_bursts_that_are_rare():
    """Rare bursts alone would let the cluster change in steps of two seconds."""
    trace = ({"at_s": 1.0, "until_s": 1.5, "every_s": 2.0, "what": "compute", "workers": (1,), "value": 5.0},)
    bursts = ({"what": "loss", "every_s": 400.0, "for_s": 40.0, "value": 0.0},)
    given = {"name": "t", "workers": ({"count": 2},), "jitter": 0.0, "trace": trace, "bursts": bursts}
    cluster = SimulatedCluster(Scenario.model_validate(given), 20, np.random.default_rng(0))
    slow_s = 0.0
    while cluster.time_s < 24:
        times = cluster.iteration(NewestSum((16, 16), 0.1, 10_000))
        slow_s += times[0].duration_s * (times[1].compute_s > 2 * times[0].compute_s)
    assert slow_s / cluster.time_s == pytest.approx(0.25, abs=0.05)
