"""Many simulated runs at once: deterministic, independent, and measured like a live cluster."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamix_ps.policy.learned.state import StateBuilder
from dynamix_ps.policy.model.cluster import ClusterModel
from dynamix_ps.policy.window_arrays import WindowArrays, arrays_of
from dynamix_ps.sim.cluster.parameters import join, parameters_of
from dynamix_ps.sim.cluster.randomise import HIGH, LOW, draw
from dynamix_ps.sim.cluster.simulator import Simulator
from dynamix_ps.sim.scenario.load import Scenario, load_scenario
from dynamix_ps.sim.scenario.parts import Servers

FIELDS = [field.name for field in dataclasses.fields(WindowArrays)]


def any_clusters(seed: int, environments: int = 6, workers: int = 5) -> Simulator:
    rng = np.random.default_rng(seed)
    return Simulator(draw(rng, environments, workers), rng)


def run(simulator: Simulator, windows: int, seed: int = 0) -> list[WindowArrays]:
    rng = np.random.default_rng(seed)
    shape = simulator.sizes.shape
    return [simulator.step(rng.integers(LOW, HIGH + 1, shape)) for _ in range(windows)]


def test_the_same_seed_gives_the_same_bits_and_another_one_does_not():
    first, again, other = (run(any_clusters(seed), 30)[-1] for seed in (1, 1, 2))
    for name in FIELDS:
        assert np.array_equal(getattr(first, name), getattr(again, name), equal_nan=True), name
    assert not np.array_equal(first.compute_s, other.compute_s)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 6), st.sampled_from([LOW, 300, HIGH]))
def test_whatever_the_cluster_the_sizes_and_the_seed_windows_are_plausible(seed: int, workers: int, size: int):
    simulator = any_clusters(seed, 3, workers)
    states = StateBuilder(ClusterModel(3, workers))
    for _ in range(5):
        window = simulator.step(np.full((3, workers), size))
        rows = states.observe(window).rows
        assert not np.isinf(rows).any()
        assert (window.duration_s > 0).all() and (window.compute_s > 0).all()
        parts = window.compute_s + window.push_pull_s + window.wait_s
        assert parts == pytest.approx(np.broadcast_to(window.duration_s[:, None], parts.shape), rel=1e-3)
        assert (window.wait_s >= -1e-3 * window.duration_s[:, None]).all()
        assert (window.accuracy >= 0).all() and (window.accuracy <= 1).all()
        assert np.isfinite(simulator.test_accuracy).all() and (simulator.progress >= 0).all()


def test_live_policies_see_what_the_learned_one_was_raised_on():
    simulator = any_clusters(3)
    together, alone = StateBuilder(ClusterModel(6, 5)), [StateBuilder(ClusterModel(5)) for _ in range(6)]
    for window in (run(simulator, 1, seed)[0] for seed in range(10)):
        rows = together.observe(window).rows
        for environment, view in enumerate(simulator.views()):
            assert view.clean
            assert {record.window for record in view.reported} == {view.window} == {simulator.windows[0] - 1}
            for record, link in zip(view.reported, view.links, strict=False):
                assert link.push_retransmits_per_s == record.retransmits_per_s
                assert link.push_rtt_s == record.rtt_s
            got = alone[environment].observe(arrays_of(view)).rows
            np.testing.assert_allclose(got, rows[environment], rtol=1e-4, atol=1e-5)


def test_pushes_to_a_server_on_the_own_host_are_no_traffic_and_its_link_makes_the_server_busy():
    apart = load_scenario("homogeneous").model_copy(update={"overlap": 0.0})
    servers = Servers(count=0, beside_workers=True)
    plain, beside = (
        Simulator(parameters_of([one]), np.random.default_rng(0)) for one in (apart, with_servers(apart, servers))
    )
    there, here = plain.step(plain.sizes), beside.step(beside.sizes)
    by_iteration = here.push_bytes_per_s * here.duration_s[:, None] / there.duration_s[:, None]
    assert by_iteration == pytest.approx(np.broadcast_to(there.push_bytes_per_s * 7 / 8, by_iteration.shape), rel=1e-4)
    assert 0 < here.server_unsent_bytes[0] < there.server_unsent_bytes[0]  # eight links take in more than two servers
    (view,) = beside.views()
    assert view.clean and view.reported[0].bytes_pushed == 20 * apart.model_bytes  # what hooks hand over


def with_servers(scenario: Scenario, servers: Servers) -> Scenario:
    return scenario.model_copy(update={"servers": servers})


def test_the_version_of_the_plan_counts_its_changes():
    simulator, versions = any_clusters(0, 2, 2), []
    for sizes in ([[16, 16], [16, 16]], [[16, 16], [16, 17]], [[16, 16], [16, 17]], [[20, 16], [17, 17]]):
        simulator.step(np.array(sizes))
        versions.append([view.plan.version for view in simulator.views()])
    assert np.diff(versions, axis=0).tolist() == [[0, 1], [0, 0], [1, 1]]


def test_a_new_run_in_one_environment_leaves_the_others_alone():
    simulator = any_clusters(0)
    run(simulator, 20)
    simulator.done[:] = True
    before = {name: getattr(simulator, name).copy() for name in ("time_s", "progress", "windows", "sizes", "done")}
    ended = np.array([False, True, False, False, True, False])
    fresh = draw(np.random.default_rng(5), 2, 5)
    whole = simulator.parameters
    simulator.replace(ended, fresh)
    assert not np.array_equal(whole.per_sample_s, simulator.parameters.per_sample_s)
    for name, old in before.items():
        assert np.array_equal(getattr(simulator, name)[~ended], old[~ended]), name
    for name in ("time_s", "progress", "windows", "done"):
        assert not getattr(simulator, name)[ended].any(), name
    assert np.array_equal(simulator.sizes[ended], fresh.initial)
    assert np.array_equal(simulator.parameters.per_sample_s[ended], fresh.per_sample_s)
    run(simulator, 1)
    assert (simulator.windows == np.where(ended, 1, 21)).all()


def test_a_replaced_cluster_runs_as_if_it_had_been_there_from_the_start():
    """Also where one has a trace and the other has none."""
    traced, plain = (parameters_of([load_scenario(name)] * 2) for name in ("hl-schedule", "homogeneous"))
    became = Simulator(plain, np.random.default_rng(0))
    for _ in range(5):
        became.step(became.sizes)
    became.replace(np.array([True, True]), traced)
    fresh = Simulator(traced, np.random.default_rng(0))
    sizes = np.full((2, 8), 256)
    for _ in range(200):
        became_s, fresh_s = became.step(sizes).compute_s.mean(axis=0), fresh.step(sizes).compute_s.mean(axis=0)
        assert became_s == pytest.approx(fresh_s, rel=0.1)
    assert became.samples == pytest.approx(fresh.samples)
    assert not plain.event_kind.size and plain.environments == 2


def test_a_target_that_was_reached_stays_reached():
    parameters = parameters_of([load_scenario("homogeneous")])
    simulator = Simulator(parameters, np.random.default_rng(0))
    small, large = (np.full((1, 8), size) for size in (100, 4096))
    while not simulator.done[0]:
        simulator.step(small)
    simulator.parameters = dataclasses.replace(parameters, gap=np.float32([0.5]))  # large batches now cost a lot
    simulator.step(large)
    assert simulator.test_accuracy[0] < parameters.target_accuracy[0]
    assert simulator.done[0]


def test_sizes_that_no_guard_has_seen_are_refused():
    simulator = any_clusters(0)
    with pytest.raises(ValueError, match="bounds"):
        simulator.step(simulator.parameters.high + 1)
    with pytest.raises(ValueError, match="shape"):
        simulator.step(np.full((6, 4), 64))


def test_clusters_of_different_size_cannot_be_simulated_together():
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="same number of workers"):
        join([draw(rng, 1, 2), draw(rng, 1, 3)])


@pytest.mark.slow
def test_clusters_at_random_are_varied_and_mostly_reach_their_target_with_a_sensible_global_batch():
    rng = np.random.default_rng(0)
    parameters = draw(rng, 200, 4)
    assert parameters.per_sample_s.max() / parameters.per_sample_s.min() > 100
    assert {tuple(sorted(set(row))) for row in (parameters.knows_network, parameters.ring)} == {(False, True)}
    reached = np.zeros(200, dtype=bool)
    for size in (64, 256, 1024):
        simulator = Simulator(parameters, np.random.default_rng(1))
        for _ in range(400):
            simulator.step(np.full((200, 4), size))
        reached |= simulator.done
    assert reached.mean() > 0.85
