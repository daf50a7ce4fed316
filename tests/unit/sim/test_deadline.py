"""A deadline in simulated iterations: who is late ends early, every sample counts once, quiet clusters lose nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dynamix_ps.config.schema import PolicySection
from dynamix_ps.sim.cluster import simulator as simulators
from dynamix_ps.sim.cluster.deadline import EVERY, SKIPPED, DeadlineSettings, SimulatedDeadline
from dynamix_ps.sim.cluster.parameters import Parameters, Reals, parameters_of
from dynamix_ps.sim.cluster.randomise import draw
from dynamix_ps.sim.cluster.simulator import Simulator
from dynamix_ps.sim.cluster.traces import Conditions
from dynamix_ps.sim.contest.evaluate import Cell, evaluate
from dynamix_ps.sim.scenario.load import Scenario, load_scenario
from dynamix_ps.sim.scenario.parts import Event, SimulatedWorker

FIRST = SKIPPED + EVERY  # iterations of a plan without a deadline


def cluster(**changed: Any) -> Scenario:
    """Four workers that compute 0.1 s at 100 samples, without jitter; worker 0 is 3 times slower from 3 s on."""
    late = Event(what="compute", at_s=3.0, workers=(0,), value=3.0)
    fields: dict[str, Any] = {
        "name": "late", "workers": (SimulatedWorker(count=4, fixed_s=0.01, per_sample_s=9e-4),), "jitter": 0.0,
        "initial_batch": 100, "window": 20, "trace": (late,), "model_bytes": 1.0, **changed,
    }  # fmt: skip
    return Scenario(**fields)


class Worker0:
    """One worker of a quiet cluster, iteration by iteration; `slow` is how much slower worker 0 is."""

    def __init__(self, settings: DeadlineSettings, samples: int = 100, **changed: Any) -> None:
        self.parameters: Parameters = parameters_of([cluster(trace=(), **changed)])
        self.conditions = Conditions(self.parameters, np.random.default_rng(0))
        self.deadline = SimulatedDeadline(settings, 1, 4)
        self._samples = samples

    def iteration(self, slow: float = 1.0) -> tuple[float, float, float]:
        """Computing seconds and samples of worker 0, and how long the iteration took."""
        self.conditions.slow = np.array([[slow, 1, 1, 1]], dtype=np.float32)
        sizes = np.full((1, 4), self._samples, dtype=np.float32)
        draws = np.full((1, 4), np.euler_gamma, dtype=np.float32)
        times, samples = self.deadline.iteration(self.parameters, self.conditions, sizes, draws)
        assert (samples[0, 1:] == self._samples).all()
        return float(times.compute_s[0, 0]), float(samples[0, 0]), float(times.iteration_s[0])


def test_the_first_iterations_of_a_plan_have_no_deadline_and_then_it_is_a_factor_on_the_usual_time():
    worker = Worker0(DeadlineSettings(1.15))
    for _ in range(FIRST):
        assert worker.deadline.seconds[0] == np.inf
        worker.iteration()
    assert worker.deadline.seconds[0] == pytest.approx(1.15 * 0.1)
    worker.deadline.factor[:] = 1.5  # of the next plan
    worker.deadline.begin_plan(np.array([True]))
    assert worker.deadline.seconds[0] == np.inf
    for slow in (1, 1, 1, 3, 3, 3, 1):  # the first one does not count, nor does the last one yet
        worker.iteration(slow)
    assert worker.deadline.seconds[0] == pytest.approx(1.5 * 0.3)


@pytest.mark.parametrize("slow", [1.2, 1.5, 2.0, 5.0])
@pytest.mark.parametrize("parts", [2, 4, 8])
def test_who_is_late_again_ends_at_most_one_part_after_the_deadline(slow: float, parts: int):
    settings = DeadlineSettings(1.15, parts, part_cost=0.0)
    worker = Worker0(settings)
    for _ in range(FIRST):
        worker.iteration()
    whole_s = slow * 0.1
    assert worker.iteration(slow)[:2] == pytest.approx((whole_s, 100))  # in one part: it cannot end early
    computing_s, samples, _ = worker.iteration(slow)
    forward_s, part_s = slow * (0.01 + 0.03), slow * 0.06 / parts
    begun = max(0.115, forward_s)  # at least one part is computed
    assert begun <= computing_s + 1e-6 and computing_s < begun + part_s + 1e-6
    done = round((computing_s - forward_s) / part_s)
    assert samples == 100 - 100 * (parts - done) // parts
    assert worker.iteration()[:2] == pytest.approx((0.1, 100))  # as fast as usual: all of it


def test_parts_that_have_a_forward_pass_of_their_own_can_end_earlier():
    ends = {}
    for forward in (False, True):
        worker = Worker0(DeadlineSettings(1.15, cuts_forward=forward))
        for slow in (*[1] * FIRST, 5, 5):
            ends[forward] = worker.iteration(slow)
    assert ends[True][0] < 0.7 * ends[False][0] and ends[True][1] > ends[False][1]


def test_parts_cost_what_the_settings_say_until_the_worker_has_not_been_late_for_long_enough():
    worker = Worker0(DeadlineSettings(1.15, 4, part_cost=0.01, lately=10))
    for slow in (*[1] * FIRST, 2):
        worker.iteration(slow)
    seconds = [worker.iteration()[0] for _ in range(12)]
    assert seconds[:10] == pytest.approx([0.103] * 10) and seconds[10:] == pytest.approx([0.1] * 2)


def test_pushes_hide_behind_the_last_part_alone_and_behind_nothing_after_an_early_end():
    """A transfer of 40 ms, of which 1/10 cannot be hidden; headers and last pieces are 4 ms more."""
    exposed_ms = []
    for slow in (1, 2, 1):
        worker = Worker0(DeadlineSettings(1.15, 2, part_cost=0.0), model_bytes=5e7, overlap=1.0)
        late = [2] * (slow == 2 or len(exposed_ms) == 2)
        for before in (*[1] * FIRST, *late):
            worker.iteration(before)
        computing_s, _, took_s = worker.iteration(slow)
        exposed_ms.append(1e3 * (took_s - computing_s))
    whole, early, two_parts = exposed_ms
    transfer_ms = (early - 0.5) / 1.1
    assert transfer_ms == pytest.approx(40, rel=0.05)
    assert whole == pytest.approx(0.2 * transfer_ms, rel=0.1)
    assert whole < two_parts < early


def run(scenario: Scenario, settings: DeadlineSettings | None, windows: int = 8) -> Simulator:
    simulator = Simulator(parameters_of([scenario] * 2), np.random.default_rng(0), settings)
    for _ in range(windows):
        simulator.step(simulator.sizes)
    return simulator


def test_every_sample_is_counted_once_by_progress_records_and_epochs():
    parameters = draw(np.random.default_rng(3), 4, 5)
    simulator = Simulator(parameters, np.random.default_rng(3), DeadlineSettings(1.05))
    sizes, reported, planned = np.random.default_rng(3), np.zeros(4), 0
    for _ in range(12):
        window = simulator.step(sizes.integers(8, 500, (4, 5)))
        assert (window.samples == np.rint(window.samples)).all()
        assert (window.samples <= 20 * simulator.sizes).all() and (window.samples > 0).all()
        reported += window.samples.sum(axis=-1)
        planned += 20 * simulator.sizes.sum(axis=-1)
        for view, samples in zip(simulator.views(), window.samples, strict=True):
            assert [record.samples for record in view.reported] == samples.tolist()
            assert view.reported[0].global_samples == samples.sum()
        assert window.epoch == pytest.approx(reported / parameters.data_samples, rel=1e-5)
    assert simulator.samples == pytest.approx(reported, rel=1e-9)
    assert (reported <= planned).all() and (reported < planned).any()


def test_a_slow_down_in_the_middle_of_a_window_costs_less_with_a_deadline():
    """Worker 0 becomes slow in the second window. The plan does not change, so that its usual time follows at last."""
    off, on = (run(cluster(), DeadlineSettings(factor), windows=2) for factor in (np.inf, 1.15))
    assert off.samples == pytest.approx(on.samples, rel=0.2) and (on.samples < off.samples).all()
    assert (on.time_s < 0.85 * off.time_s).all()
    assert (on.progress < off.progress).all()  # the same luck, and fewer samples
    assert off.time_s[0] == pytest.approx(30 * 0.1 + 10 * 0.3, rel=0.02)  # the change comes at 3 s, not at 4 s


def test_quiet_clusters_lose_nothing():
    quiet = cluster(trace=(), jitter=0.03)
    off, on = (run(quiet, DeadlineSettings(factor), windows=20) for factor in (np.inf, 1.3))
    assert on.time_s.tolist() == off.time_s.tolist() and on.progress.tolist() == off.progress.tolist()


def test_iterations_one_by_one_take_as_long_as_windows_with_mean_times():
    quiet = cluster(trace=(), jitter=0.05, warm_up=1.5, model_bytes=2e7)
    means, single = run(quiet, None, windows=40), run(quiet, DeadlineSettings(), windows=40)
    assert single.time_s == pytest.approx(means.time_s, rel=0.01)
    assert single.samples.tolist() == means.samples.tolist()
    first = [run(quiet, settings, windows=1).time_s for settings in (None, DeadlineSettings())]
    assert first[1] == pytest.approx(first[0], rel=0.05)  # one-time work lasts for all of the first window


def test_without_a_deadline_no_iteration_is_simulated(monkeypatch: pytest.MonkeyPatch):
    """So bits stay as recorded (test_recorded_bits.py)."""

    def refuse(*_: object) -> tuple[Any, Reals]:
        raise AssertionError

    monkeypatch.setattr(simulators.SimulatedDeadline, "iteration", refuse)
    run(cluster(), None)


def test_a_new_run_has_no_deadline_and_nobody_who_was_late():
    simulator = run(cluster(), DeadlineSettings(1.15), windows=3)
    simulator.restart(np.array([True, False]))
    deadline = simulator.deadline
    assert deadline and deadline.seconds[0] == np.inf and np.isfinite(deadline.seconds[1])
    simulator.step(simulator.sizes)
    assert simulator.samples[0] == 20 * 400


def test_another_plan_has_no_deadline_at_first():
    simulator = Simulator(parameters_of([cluster(window=4)] * 2), np.random.default_rng(0), DeadlineSettings(1.15))
    sizes = simulator.sizes
    for more in ([0, 0], [0, 0], [0, 1]):
        simulator.step(sizes + np.array(more)[:, None])
    assert simulator.deadline and np.isfinite(simulator.deadline.seconds).tolist() == [True, False]


def test_windows_of_different_lengths_are_refused():
    parameters = parameters_of([cluster(), cluster(window=10)])
    simulator = Simulator(parameters, np.random.default_rng(0), DeadlineSettings())
    with pytest.raises(ValueError, match="iterations"):
        simulator.step(simulator.sizes)


def test_policies_run_under_a_deadline():
    scenario = load_scenario("recurring").model_copy(update={"max_windows": 15, "overlap": 0.0})
    outcomes = [
        evaluate(Cell(scenario, policy, 2, 0, DeadlineSettings(factor)))
        for policy in (PolicySection(name="model"), None)
        for factor in (np.inf, 1.15)
    ]
    assert all((one.windows == 15).all() for one in outcomes)
    assert (outcomes[1].samples_per_s != outcomes[0].samples_per_s).all()
