"""Effects of real machines: each alone as its formula says, in the times of a window, and as scenarios name them."""

from __future__ import annotations

import numpy as np
import pytest

from dynamix_ps.sim.cluster.cost import compute_s, iteration_times
from dynamix_ps.sim.cluster.effects.contention import contended
from dynamix_ps.sim.cluster.effects.heat import slow_down, warmed
from dynamix_ps.sim.cluster.effects.recurrence import first_occurrence
from dynamix_ps.sim.cluster.effects.tiles import padding
from dynamix_ps.sim.cluster.parameters import Parameters, parameters_of
from dynamix_ps.sim.cluster.randomise import draw
from dynamix_ps.sim.cluster.simulator import Simulator
from dynamix_ps.sim.cluster.traces import Conditions
from dynamix_ps.sim.scenario.effects import effects_of, without_effects
from dynamix_ps.sim.scenario.load import Scenario, load_scenario, shipped
from dynamix_ps.sim.scenario.parts import Cliff, Event, Heat, SimulatedWorker, Tiles

WITH_EFFECTS = {
    "tile-steps": ("tiles",),
    "cliffs": ("cliff",),
    "shared-hosts": ("contention",),
    "heat": ("heat",),
    "recurring": ("recurrence",),
    "recurring-slowly": ("recurrence",),
    "all-effects": ("tiles", "cliff", "heat", "contention", "recurrence"),
}
PLAIN = {"fixed_s": 0.1, "per_sample_s": 0.001}


def cluster(*workers: SimulatedWorker, **changes: object) -> Parameters:
    return parameters_of([Scenario.model_validate({"name": "c", "workers": workers, "jitter": 0.0, **changes})])


def computing_s(parameters: Parameters, *sizes: int) -> list[float]:
    calm = Conditions(parameters, np.random.default_rng(0))
    return compute_s(parameters, calm, np.array([sizes], dtype=np.float32))[0].tolist()


class TestTiles:
    def test_a_tile_takes_as_long_with_one_sample_as_full(self):
        one = cluster(SimulatedWorker(count=5, **PLAIN, tiles=Tiles(samples=32)))
        assert computing_s(one, 1, 10, 32, 33, 64) == pytest.approx([0.132, 0.132, 0.132, 0.164, 0.164])

    def test_only_its_part_comes_in_tiles(self):
        one = cluster(SimulatedWorker(count=2, **PLAIN, tiles=Tiles(samples=32, part=0.25)))
        assert computing_s(one, 10, 33) == pytest.approx([0.1 + 0.010 + 0.25 * 0.022, 0.1 + 0.033 + 0.25 * 0.031])

    def test_every_worker_has_its_own(self):
        one = cluster(SimulatedWorker(**PLAIN), SimulatedWorker(**PLAIN, tiles=Tiles(samples=64)))
        assert computing_s(one, 40, 40) == pytest.approx([0.14, 0.164])

    def test_time_never_falls_as_the_size_grows_and_is_that_of_the_line_at_full_tiles(self):
        sizes = np.arange(1, 400, dtype=np.float32)
        padded = sizes + padding(sizes, np.float32(48), np.float32(0.7))
        assert (np.diff(padded) >= 0).all()
        assert padded[47::48].tolist() == sizes[47::48].tolist()


class TestCliffs:
    def test_beyond_the_cliff_the_slope_is_steeper_and_before_it_as_ever(self):
        one = cluster(SimulatedWorker(count=3, **PLAIN, cliff=Cliff(above_samples=100, slope=2.4)))
        assert computing_s(one, 50, 100, 150) == pytest.approx([0.15, 0.2, 0.2 + 2.4 * 0.05])

    def test_memory_comes_on_top(self):
        one = cluster(SimulatedWorker(**PLAIN, memory_limit=200, cliff=Cliff(above_samples=100, slope=2.0)))
        assert computing_s(one, 210) == pytest.approx([0.1 + 0.21 + 0.11 + 7 * 0.01])


class TestContention:
    def test_two_workers_of_a_host_are_slower_while_both_compute(self):
        """The shorter one is disturbed all the time, the longer one as long as the shorter one computes."""
        one = cluster(*(SimulatedWorker(fixed_s=0.0, per_sample_s=0.001, host="a"),) * 2, contention=0.5)
        assert computing_s(one, 100, 300) == pytest.approx([0.15, 0.35])

    def test_it_is_what_a_clock_with_small_steps_counts(self):
        rng = np.random.default_rng(0)
        alone_s = rng.uniform(0.1, 1, 5)
        left, took_s, step_s = alone_s.copy(), np.zeros(5), 1e-4
        while (left > 0).any():
            computing = left > 0
            took_s[computing] += step_s
            left[computing] -= step_s / (1 + 0.3 * (computing.sum() - 1))
        got = contended(alone_s[None], np.zeros((1, 5), dtype=np.int64), np.array([0.3]))
        assert got[0] == pytest.approx(took_s, rel=2e-3)

    def test_workers_of_other_hosts_and_without_a_host_are_left_alone(self):
        same = {"fixed_s": 0.0, "per_sample_s": 0.001}
        hosts = ("a", "b", "a", None, None)
        one = cluster(*(SimulatedWorker(**same, host=host) for host in hosts), contention=0.5)
        assert computing_s(one, *[100] * 5) == pytest.approx([0.15, 0.1, 0.15, 0.1, 0.1])

    def test_a_larger_cluster_has_more_hosts_and_as_many_workers_on_each(self):
        shared = load_scenario("shared-hosts")
        hosts = [worker.host for worker in shared.with_workers(24).each_worker]
        assert {hosts.count(host) for host in hosts} == {4, 3, 1}
        assert len(set(hosts)) == 9
        sizes = np.full((1, 8), 200, dtype=np.float32)
        before, after = (
            compute_s(one, Conditions(one, np.random.default_rng(0)), np.repeat(sizes, n // 8, axis=1))
            for n in (8, 24)
            for one in (parameters_of([shared.with_workers(n)]),)
        )
        assert after == pytest.approx(np.repeat(before, 3, axis=1))


class TestHeat:
    def test_heat_is_the_exponential_mean_of_the_load(self):
        heat = np.zeros((1, 2), dtype=np.float32)
        for _ in range(28):
            heat = warmed(heat, np.array([[1.0, 0.5]]), np.ones(1), np.full((1, 2), 28.0))
        assert heat[0] == pytest.approx([1 - np.exp(-1), 0.5 * (1 - np.exp(-1))])
        one_step = warmed(np.zeros((1, 2)), np.array([[1.0, 0.5]]), np.full(1, 28.0), np.full((1, 2), 28.0))
        assert one_step == pytest.approx(heat)

    def test_nothing_happens_up_to_the_sustained_load_and_the_largest_slow_down_at_full_load(self):
        got = slow_down(np.array([0.0, 0.5, 0.6, 0.8, 1.0]), np.float32(0.6), np.float32(1.5))
        assert got == pytest.approx([1, 1, 1, 1.25, 1.5])

    def test_a_worker_that_always_computes_becomes_slow_and_one_that_waits_stays_fast_and_recovers(self):
        hot = SimulatedWorker(fixed_s=0.0, per_sample_s=0.001, heat=Heat(slow_down=1.5, time_constant_s=10.0))
        one = cluster(hot, hot, model_bytes=1.0)
        simulator = Simulator(one, np.random.default_rng(0))
        for sizes, slower in (((200, 100), 0), ((100, 200), 1)):
            for _ in range(40):
                simulator.step(np.array([sizes]))
            factors = simulator.conditions.heat[0]
            assert factors[slower] == pytest.approx(1.5, rel=0.01)
            assert factors[1 - slower] == pytest.approx(1.0)

    def test_a_new_run_begins_cold(self):
        simulator = Simulator(parameters_of([load_scenario("heat")] * 2), np.random.default_rng(0))
        for _ in range(40):
            simulator.step(np.full((2, 8), 1000))
        assert (simulator.conditions.heat.max(axis=-1) > 1.3).all()
        simulator.restart(np.array([True, False]))
        assert simulator.conditions.heat[0].tolist() == [1] * 8
        assert simulator.conditions.heat[1].max() > 1.3

    def test_the_factor_is_in_the_time_of_the_next_window(self):
        hot = cluster(SimulatedWorker(fixed_s=0.0, per_sample_s=0.001, heat=Heat(slow_down=2.0, time_constant_s=0.01)))
        conditions = Conditions(hot, np.random.default_rng(0))
        conditions.advance(*np.float32([[9], [0], [9]]), np.float32([[1]]))
        assert compute_s(hot, conditions, np.float32([[100]]))[0] == pytest.approx([0.2])


class TestRecurrence:
    def test_a_change_comes_back_after_its_period_and_lasts_as_long(self):
        event = Event(at_s=10, until_s=12, every_s=5, what="compute", workers=(1,), value=3)
        conditions = Conditions(cluster(SimulatedWorker(count=2), trace=(event,)), np.random.default_rng(0))
        on = []
        for time_s in range(26):
            conditions.advance(*np.float32([[time_s], [0], [1]]), np.float32([[1, 1]]))
            on.append(conditions.slow[0].tolist())
        slow = [time_s for time_s, factors in enumerate(on) if factors == [1, 3]]
        assert slow == [10, 11, 15, 16, 20, 21, 25]
        assert all(factors == [1, 1] for time_s, factors in enumerate(on) if time_s not in slow)

    def test_what_does_not_come_back_stays_at_its_time(self):
        now = np.array([[3.0, 7.0, 7.0]])
        got = first_occurrence(now, np.array([[5.0, 5.0, 5.0]]), np.array([[4.0, 4.0, np.inf]]))
        assert got.tolist() == [[3.0, 7.0, 7.0]]
        assert first_occurrence(np.array([[15.5]]), np.array([[5.0]]), np.array([[4.0]])).tolist() == [[7.5]]

    @pytest.mark.parametrize("name", ["recurring", "recurring-slowly"])
    def test_scenarios_are_slow_for_the_part_of_the_time_that_they_say(self, name: str):
        scenario = load_scenario(name)
        conditions = Conditions(parameters_of([scenario]), np.random.default_rng(0))
        on, times_s = [], np.arange(60, 700, 0.2, dtype=np.float32)
        for time_s in times_s:
            conditions.advance(*np.float32([[time_s], [0], [0.2]]), np.ones((1, 8), np.float32))
            on.append((conditions.slow[0] > 1) | (conditions.bandwidth[0] < 1))
        for event in scenario.trace:
            assert event.workers is not None and event.every_s and event.at_s is not None and event.until_s
            part = (event.until_s - event.at_s) / event.every_s
            assert np.mean(on, axis=0)[list(event.workers)] == pytest.approx([part] * len(event.workers), abs=0.03)


class TestScenarios:
    def test_those_with_effects_say_which(self):
        found = {name: effects_of(load_scenario(name)) for name in shipped()}
        assert {name: effects for name, effects in found.items() if effects} == WITH_EFFECTS

    @pytest.mark.parametrize("name", sorted(WITH_EFFECTS))
    def test_effects_make_it_slower_than_the_same_cluster_without(self, name: str):
        scenario = load_scenario(name)
        plain = without_effects(scenario)
        assert effects_of(plain) == () and plain.with_workers(5).n_workers == 5
        seconds = []
        for one in (scenario, plain):
            simulator = Simulator(parameters_of([one]), np.random.default_rng(0))
            for _ in range(60):
                simulator.step(np.full((1, 8), 200))
            seconds.append(simulator.time_s[0])
        assert seconds[0] > 1.05 * seconds[1]

    def test_what_once_happens_stays_when_effects_are_left_out(self):
        once, again = (Event(at_s=1, until_s=2, every_s=every, what="compute", value=2) for every in (None, 9))
        scenario = Scenario(name="x", trace=(once, again))
        assert without_effects(scenario).trace == (once,)


def test_a_neutral_effect_changes_no_bit():
    """A scenario with effects beside one without: that one is as if it were alone."""
    plain, full = load_scenario("spot-slowdown"), load_scenario("all-effects")
    alone, beside = (Simulator(parameters_of(one), np.random.default_rng(0)) for one in ([plain] * 2, [plain, full]))
    for _ in range(30):
        first, second = (one.step(one.sizes + 90) for one in (alone, beside))
        assert first.compute_s[0].tolist() == second.compute_s[0].tolist()
        assert first.duration_s[0] == second.duration_s[0]


def test_clusters_with_effects_take_the_place_of_others():
    plain, full = draw(np.random.default_rng(0), 3, 8), parameters_of([load_scenario("all-effects")])
    simulator = Simulator(plain, np.random.default_rng(0))
    simulator.replace(np.array([False, True, False]), full)
    for _ in range(60):
        simulator.step(np.where(np.isfinite(simulator.parameters.heat_s), 2000, 100))
    parameters = simulator.parameters
    assert (parameters.tile_part > 0).any(axis=-1).tolist() == [False, True, False]
    assert np.isfinite(parameters.event_every).any(axis=-1).tolist() == [False, True, False]
    assert (simulator.conditions.heat > 1).any(axis=-1).tolist() == [False, True, False]


def test_several_plans_at_once_take_as_long_as_each_alone():
    parameters = parameters_of([load_scenario(name) for name in ("all-effects", "h-level-8")])
    conditions = Conditions(parameters, np.random.default_rng(0))
    plans = np.random.default_rng(0).integers(8, 800, (4, 2, 8)).astype(np.float32)
    calm = np.zeros((2, 8), dtype=np.float32)
    together = iteration_times(parameters, conditions, plans, calm)
    for index, plan in enumerate(plans):
        alone = iteration_times(parameters, conditions, plan, calm)
        assert together.iteration_s[index].tolist() == alone.iteration_s.tolist()
        assert together.wait_s[index].tolist() == alone.wait_s.tolist()
