"""Scenarios: errors in files are reported, traces act as written, and every scenario can be improved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dynamix_ps.errors import ConfigError
from dynamix_ps.sim.cluster import learning
from dynamix_ps.sim.cluster.cost import iteration_times
from dynamix_ps.sim.cluster.parameters import parameters_of
from dynamix_ps.sim.cluster.simulator import Simulator
from dynamix_ps.sim.cluster.traces import Conditions
from dynamix_ps.sim.scenario.load import Scenario, dump_scenario, load_scenario, shipped

BATCHES = np.geomspace(64, 32768, 37)


def goodput(scenario: Scenario, excess: float) -> list[float]:
    """Progress per second with every global batch of BATCHES, split by speed, while nothing happens."""
    parameters = parameters_of([scenario])
    calm = Conditions(parameters, np.random.default_rng(0))
    calm.slow, calm.bandwidth = np.ones_like(calm.slow), np.ones_like(calm.bandwidth)
    calm.loss = np.zeros_like(calm.loss)
    share = 1 / parameters.per_sample_s / (1 / parameters.per_sample_s).sum()
    noise = learning.noise_scale(parameters, np.float32([excess]))
    values = []
    for batch in BATCHES:
        times = iteration_times(parameters, calm, (share * batch).astype(np.float32), np.zeros_like(share))
        values.append(float(learning.step_progress(parameters, noise, np.float32([batch]))[0] / times.iteration_s[0]))
    return values


def run_to_target(scenario: Scenario, per_worker: int) -> tuple[int, float]:
    """Windows and seconds that it takes, with shares by the speed in the last window."""
    simulator = Simulator(parameters_of([scenario]), np.random.default_rng(0))
    sizes = simulator.sizes
    while not simulator.done[0] and not simulator.truncated[0]:
        window = simulator.step(sizes)
        speed = window.samples / window.compute_s
        shares = np.rint(per_worker * scenario.n_workers * speed / speed.sum()).astype(int)
        sizes = np.clip(shares, window.low, window.high)
    return int(simulator.windows[0]), float(simulator.time_s[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", shipped())
def test_what_ships_is_solved_in_some_hundred_windows_and_its_first_sizes_are_not_the_best(name: str):
    scenario = load_scenario(name)
    took, _ = run_to_target(scenario, 200 if scenario.lr_rule in {"adascale", "sqrt"} else 100)
    assert 100 <= took <= 400
    if scenario.lr_rule != "none":
        first = Simulator(parameters_of([scenario]), np.random.default_rng(0))
        for _ in range(2 * took):
            first.step(first.sizes)
        assert not first.done[0]


@pytest.mark.parametrize("name", shipped())
def test_the_best_global_batch_lies_between_the_bounds_and_moves(name: str):
    scenario = load_scenario(name)
    early, late = (goodput(scenario, excess) for excess in (1.0, 0.15))
    first, last = int(np.argmax(early)), int(np.argmax(late))
    assert 0 < first < last < len(BATCHES) - 1
    assert BATCHES[last] / BATCHES[first] >= (1.15 if scenario.lr_rule == "none" else 2)
    assert early[first] > 1.1 * early[last] or scenario.lr_rule == "none"


def test_constant_clusters_are_those_without_events_bursts_drift_or_heat():
    constant = {name for name in shipped() if load_scenario(name).constant}
    assert constant == {
        "homogeneous", "h-level-2", "h-level-4", "h-level-8", "h-level-10", "slow-link", "server-ingress",
        "tile-steps", "cliffs", "shared-hosts",
    }  # fmt: skip


def test_levels_keep_the_capacity_of_the_cluster_and_are_as_uneven_as_they_say():
    whole = (1 / parameters_of([load_scenario("homogeneous")]).per_sample_s).sum()
    for level in (2, 4, 8, 10):
        speed = 1 / parameters_of([load_scenario(f"h-level-{level}")]).per_sample_s
        assert speed.max() / speed.min() == pytest.approx(level, rel=0.01)
        assert speed.sum() == pytest.approx(whole, rel=0.02)


@pytest.mark.parametrize("name", ["server-ingress", "slow-link", "hl-schedule", "bandwidth-drop"])
def test_at_another_size_it_is_the_same_cluster(name: str):
    (windows, seconds), (windows_32, seconds_32) = (
        run_to_target(load_scenario(name).with_workers(n), 200) for n in (8, 32)
    )
    assert windows_32 == pytest.approx(windows, rel=0.1)
    assert seconds_32 == pytest.approx(seconds, rel=0.1)
    small = load_scenario(name).with_workers(3)
    assert small.n_workers == 3
    parameters_of([small])


def test_with_workers_moves_events_and_kinds_of_workers_along():
    larger = load_scenario("spot-slowdown").with_workers(16)
    assert larger.trace[0].workers == (0, 1, 2, 3)
    assert load_scenario("slow-link").with_workers(16).each_worker[13:][0].bytes_per_s == 1.25e9
    assert [w.bytes_per_s for w in load_scenario("slow-link").with_workers(16).workers[14:]] == [2e8, 2e8]
    assert load_scenario("hl-schedule").with_workers(16).trace[0].value[4:8] == (1.5, 1.5, 0.75, 0.75)  # type: ignore[index]
    smaller = load_scenario("spot-slowdown").with_workers(2)  # workers 0 and 4 of before
    assert [event.workers for event in smaller.trace] == [(0,), (1,)]


def slowdowns(scenario: Scenario, times_s: list[float], epochs: list[float] | None = None) -> list[list[float]]:
    conditions = Conditions(parameters_of([scenario]), np.random.default_rng(0))
    seen = []
    for time_s, epoch in zip(times_s, epochs or [0.0] * len(times_s), strict=True):
        conditions.advance(np.float32([time_s]), np.float32([epoch]), np.float32([1]), np.float32([[1]]))
        seen.append(conditions.slow[0].tolist())
    return seen


def write(folder: Path, text: str, name: str = "s.yaml") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def test_events_begin_end_and_multiply(tmp_path: Path):
    scenario = load_scenario(
        write(
            tmp_path,
            """
name: t
workers: [{count: 3}]
trace:
  - {at_s: 10, until_s: 20, what: compute, workers: [1], value: 3}
  - {at_s: 15, what: compute, value: [2, 2, 1]}
  - {at_epoch: 5, until_epoch: 6, what: compute, workers: [2], value: 7}
""",
        )
    )
    seen = slowdowns(scenario, [0, 10, 15, 20, 21, 22], [0, 0, 0, 0, 5.5, 6])
    assert seen == [[1, 1, 1], [1, 3, 1], [2, 6, 1], [2, 2, 1], [2, 2, 7], [2, 2, 1]]


def test_a_trace_may_be_a_csv_file_beside_the_scenario(tmp_path: Path):
    write(tmp_path, "at_s,until_s,what,workers,value\n10,20,compute,1,3\n15,,bandwidth,,0.5\n", "t.csv")
    scenario = load_scenario(write(tmp_path, "name: t\nworkers: [{count: 3}]\ntrace: t.csv\n"))
    assert slowdowns(scenario, [0, 10, 20]) == [[1, 1, 1], [1, 3, 1], [1, 1, 1]]
    assert scenario.trace[1].workers is None


def test_bursts_are_on_as_often_and_as_long_as_they_say():
    burst = {"what": "compute", "every_s": 30.0, "for_s": 10.0, "value": 5.0, "workers": (0, 1)}
    scenario = Scenario.model_validate({"name": "b", "bursts": (burst,), "workers": ({"count": 3},)})
    conditions = Conditions(parameters_of([scenario] * 50), np.random.default_rng(0))
    on = []
    for _ in range(2000):
        conditions.advance(*(np.float32([one] * 50) for one in (0, 0, 1)), np.ones((50, 3), np.float32))
        on.append(conditions.slow > 1)
    share, begun = np.mean(on, axis=(0, 1)), (np.diff(np.array(on).astype(int), axis=0) > 0).sum(axis=(0, 1))
    assert share == pytest.approx([0.25, 0.25, 0], abs=0.02)
    assert begun[:2] / (50 * 2000) == pytest.approx([1 / 40] * 2, rel=0.1)


@pytest.mark.parametrize("name", shipped())
def test_what_is_written_is_read_back_as_the_same(tmp_path: Path, name: str):
    scenario = load_scenario(name)
    assert load_scenario(write(tmp_path, dump_scenario(scenario))) == scenario
    larger = scenario.with_workers(12)
    assert load_scenario(write(tmp_path, dump_scenario(larger))) == larger


def test_whether_the_bytes_are_named_is_written_too(tmp_path: Path):
    named = Scenario(name="t", model_bytes=Scenario(name="t").model_bytes)
    for scenario in (named, Scenario(name="t")):
        again = load_scenario(write(tmp_path, dump_scenario(scenario)))
        assert ("model_bytes" in again.model_fields_set) == ("model_bytes" in scenario.model_fields_set)


def test_a_profile_gives_the_values_that_are_not_written(tmp_path: Path):
    text = "name: t\ntarget_accuracy: 0.4\ntraining: {profile: transformer, noise_scale: 77.0}\n"
    training = load_scenario(write(tmp_path, text)).training
    assert (training.noise_scale, training.decay, training.first_loss) == (77.0, 0.7, 9.2)


def test_a_workload_is_read_over_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    text = "name: t\ntraining: {noise_scale: 77.0WORKLOAD}\n"
    named, plain = (text.replace("WORKLOAD", more) for more in (", workload: {name: cnn-sgd}", ""))
    assert load_scenario(write(tmp_path, named)) == load_scenario(write(tmp_path, plain))
    assert [one.getMessage().partition(":")[0] for one in caplog.records] == ["training.workload"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: t\nworker: [{count: 2}]\n", r"s.yaml:2: worker: Extra inputs"),
        ("name: t\nworkers:\n  - {count: 2}\n  - {per_sample_s: -1.0}\n", r"s.yaml:4: workers.1.per_sample_s: .*gre"),
        ("name: t\ntrace: [{at_s: 1.0, at_epoch: 2.0, what: loss, value: 0.1}]\n", "either at_s or at_epoch"),
        ("name: t\ntrace: [{at_s: 1.0, what: compute, workers: [8], value: 2.0}]\n", r"workers \[8\], .* only 0 to 7"),
        ("name: t\ntrace: [{at_s: 1.0, what: compute, value: [2.0, 1.0]}]\n", "2 values for 8 workers"),
        ("name: t\ninitial_batch: 4\n", "initial size 4 is outside the bounds 8 to 4096"),
        ("name: t\ntarget_accuracy: 0.99\n", "target_accuracy must lie between"),
        ("name: t\ntrace: [{at_s: 1.0, every_s: 5.0, what: compute, value: 2.0}]\n", "every_s needs at_s and until_s"),
        ("name: t\ntrace: [{at_s: 1.0, until_s: 6.0, every_s: 5.0, what: compute, value: 2}]\n", "lasts 5 s, .* less"),
        ("name: t\nworkers: [{tiles: {samples: 1}}]\n", r"s.yaml:2: workers.0.tiles.samples: .*greater"),
        ("name: t\nworkers: [{cliff: {above_samples: 9, slope: 1}}]\n", r"workers.0.cliff.slope: .*greater than 1"),
        ("name: t\nworkers: [{heat: {slow_down: 2, sustained_load: 1}}]\n", r"heat.sustained_load: .*less than 1"),
        ("name: t\ncontention: 0.2\n", "no worker has the key host"),
        ("name: t\nservers: {count: 0}\n", r"s.yaml:2: servers: .*there must be a server"),
        ("name: t\nname: u\n", r"s.yaml:2: .*"),
        ("name: t\ntrace: missing.csv\n", r"missing.csv: cannot be read as a trace"),
        ("", "valid dictionary"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_told_what_is_wrong_and_where(tmp_path: Path, text: str, message: str):
    with pytest.raises(ConfigError, match=message):
        load_scenario(write(tmp_path, text))


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"no-such: not one of .*homogeneous"):
        load_scenario("no-such")
