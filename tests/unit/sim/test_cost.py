"""The simulated cluster takes as long as its parts, and reports it like the hook of a real one."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dynamix_ps.sim.cluster.cost import SEGMENT_BYTES, WindowTimes, compute_s, iteration_times, transfers
from dynamix_ps.sim.cluster.parameters import Parameters, parameters_of
from dynamix_ps.sim.cluster.traces import Conditions
from dynamix_ps.sim.scenario.load import Scenario
from dynamix_ps.sim.scenario.parts import Servers, SimulatedWorker


def cluster(*workers: SimulatedWorker, **changes: object) -> Parameters:
    given = {
        "name": "c",
        "workers": workers or (SimulatedWorker(count=4),),
        "jitter": 0.0,
        "servers": Servers(bytes_per_s=1e12),
    }
    return parameters_of([Scenario.model_validate({**given, **changes})])


def times(parameters: Parameters, *sizes: int, luck: float = 0.0) -> WindowTimes:
    wide = np.array([sizes], dtype=np.float32)
    conditions = Conditions(parameters, np.random.default_rng(0))
    return iteration_times(parameters, conditions, wide, np.full(wide.shape, luck, dtype=np.float32))


def transfer_s_of(parameters: Parameters, bandwidth: tuple[float, ...] | None = None) -> list[float]:
    """By worker; `bandwidth` is a factor on each link while training runs."""
    conditions = Conditions(parameters, np.random.default_rng(0))
    if bandwidth is not None:
        conditions.bandwidth = np.array([bandwidth], dtype=np.float32)
    _, transfer_s, _ = transfers(parameters, conditions)
    return transfer_s[0].tolist()


def test_computing_is_affine_in_the_batch_and_steep_beyond_the_memory_limit():
    one = cluster(SimulatedWorker(count=4, fixed_s=0.1, per_sample_s=0.001, memory_limit=500))
    calm = Conditions(one, np.random.default_rng(0))
    got = compute_s(one, calm, np.array([[100, 200, 500, 600]], dtype=np.float32))
    assert got[0] == pytest.approx([0.2, 0.3, 0.6, 0.6 + 8 * 0.1])


def test_a_quota_hides_how_long_a_waiting_worker_really_needs_and_cpu_time_tells():
    """Worker 0 could do it all in 0.02 s at full speed, and has a quarter of a core."""
    workers = (
        SimulatedWorker(fixed_s=0.0, per_sample_s=8e-4, quota=0.25),
        SimulatedWorker(fixed_s=0.0, per_sample_s=2e-3),
    )
    waiting, late = times(cluster(*workers), 50, 100), times(cluster(*workers), 250, 100)
    assert waiting.sustained_s[0] == pytest.approx([0.04, 0.2])
    assert waiting.compute_s[0, 0] == pytest.approx(0.01, rel=0.1)  # a fifth of the time busy: nearly full speed
    assert waiting.compute_s[0, 1] == pytest.approx(0.2)
    assert late.compute_s[0] == pytest.approx([0.2, 0.2], rel=0.02)  # held up: it uses all of its quota
    without = times(cluster(*(worker.model_copy(update={"quota": 1.0}) for worker in workers)), 50, 100)
    assert waiting.iteration_s == pytest.approx(without.iteration_s)


def test_the_three_times_cover_the_iteration_and_the_last_one_waits_for_nobody():
    got = times(cluster(), 32, 64, 128, 256)
    assert (got.compute_s + got.push_pull_s[:, None] + got.wait_s)[0] == pytest.approx([got.iteration_s[0]] * 4)
    assert got.wait_s[0, 3] == pytest.approx(0, abs=1e-6)
    assert (np.diff(got.wait_s[0]) < 0).all()


def test_jitter_makes_everybody_wait_as_long_as_counting_iterations_one_by_one_says():
    noisy = cluster(SimulatedWorker(count=3), SimulatedWorker(per_sample_s=3e-4), jitter=0.1)
    sizes = (100, 100, 100, 60)
    got, rng = times(noisy, *sizes), np.random.default_rng(1)
    calm = times(dataclasses.replace(noisy, jitter=np.zeros(1, np.float32)), *sizes)
    network_s = (calm.iteration_s - calm.compute_s.max())[0]
    scale = np.sqrt(6) / np.pi * 0.1 * calm.compute_s.max()
    computing = calm.compute_s[0] + scale * (rng.gumbel(size=(200_000, 4)) - np.euler_gamma)
    iteration = computing.max(axis=1) + network_s
    blocked = iteration[:, None] - computing
    push_pull = blocked.min(axis=1)
    assert got.iteration_s[0] == pytest.approx(iteration.mean(), rel=0.02)
    assert got.push_pull_s[0] == pytest.approx(push_pull.mean(), rel=0.02)
    assert got.wait_s[0] == pytest.approx((blocked - push_pull[:, None]).mean(axis=0), rel=0.05)


def test_luck_of_a_window_falls_with_the_root_of_its_iterations():
    short, long = cluster(jitter=0.1, window=20), cluster(jitter=0.1, window=320)
    away = [times(one, 64, 64, 64, 64, luck=2.0).compute_s[0, 0] for one in (short, long)]
    calm = times(short, 64, 64, 64, 64).compute_s[0, 0]
    assert (away[0] - calm) / (away[1] - calm) == pytest.approx(4, rel=1e-3)


def test_a_slow_link_holds_everybody_up_and_fewer_samples_there_help():
    thin = cluster(SimulatedWorker(count=3), SimulatedWorker(bytes_per_s=2e8))
    equal, shifted = times(thin, 200, 200, 200, 200), times(thin, 260, 260, 260, 20)
    assert equal.push_pull_s[0] > 3 * times(cluster(), 200, 200, 200, 200).push_pull_s[0]
    assert equal.wait_s.max() < 1e-6  # by computing alone nobody is late
    assert shifted.iteration_s[0] < 0.96 * equal.iteration_s[0]


def test_half_of_the_lead_of_a_worker_behind_a_thin_link_is_won():
    """Its transfer takes 1 s. It pushes while others compute, but pulls when they have pushed, and begins late."""
    workers = (
        SimulatedWorker(count=3, fixed_s=0.6, per_sample_s=1e-9),
        SimulatedWorker(fixed_s=0.2, per_sample_s=1e-9, bytes_per_s=2e7),
    )
    early = times(cluster(*workers, overlap=0.0), 1, 1, 1, 1)
    assert early.iteration_s[0] == pytest.approx(0.6 / 2 + 0.2 / 2 + 1.1, rel=0.01)
    alike = times(cluster(*(one.model_copy(update={"fixed_s": 0.6}) for one in workers), overlap=0.0), 1, 1, 1, 1)
    assert alike.iteration_s[0] == pytest.approx(0.6 + 1.1, rel=0.01)


def simulated_iterations(compute_s: list[float], network_s: list[float], iterations: int = 400) -> float:
    """Mean iteration, event by event: a piece is pulled when all have pushed it, at the rate of the puller's link."""
    pieces = 50
    starts = np.zeros(len(compute_s))
    for _ in range(iterations):
        pushed = (starts + compute_s)[:, None] + np.arange(1, pieces + 1) / pieces * np.array(network_s)[:, None]
        summed = pushed.max(axis=0)
        ends = []
        for seconds in network_s:
            pulled = 0.0
            for at in summed:
                pulled = max(pulled, at) + seconds / pieces
            ends.append(pulled)
        starts = np.array(ends)
    return float(starts.max() / iterations)


@pytest.mark.parametrize(
    ("compute_s", "network_s"),
    [
        ([0.17, 0.17, 0.02], [0.002, 0.002, 0.18]),
        ([0.05, 0.1, 0.2], [0.1, 0.1, 0.1]),
        ([0.1, 0.2, 0.15, 0.05], [0.01, 0.05, 0.2, 0.25]),
        ([0.5, 0.02], [0.01, 0.1]),
    ],
)
def test_iterations_take_as_long_as_piece_by_piece(compute_s: list[float], network_s: list[float]):
    workers = [
        SimulatedWorker(fixed_s=seconds, per_sample_s=1e-9, bytes_per_s=2e7 / on_the_way_s, latency_s=1e-9)
        for seconds, on_the_way_s in zip(compute_s, network_s, strict=True)
    ]
    found = float(times(cluster(*workers, overlap=0.0), *[1] * len(workers)).iteration_s[0])
    expected = simulated_iterations(compute_s, network_s)
    assert found == pytest.approx(expected + 0.1 * max(network_s), rel=0.03)


def test_what_servers_take_in_is_shared_by_all_workers():
    few = cluster(SimulatedWorker(count=4, latency_s=1e-9), servers=Servers(count=1, bytes_per_s=1e9))
    many = cluster(SimulatedWorker(count=16, latency_s=1e-9), servers=Servers(count=1, bytes_per_s=1e9))
    transfer_s = [transfer_s_of(one)[0] for one in (few, many)]
    assert transfer_s == pytest.approx([4 * 2e7 / 1e9, 16 * 2e7 / 1e9], rel=1e-3)


def test_losses_bound_the_rate_by_the_formula_of_mathis():
    lossy = cluster(SimulatedWorker(count=4, latency_s=0.01, loss=0.01), servers=Servers(count=1, bytes_per_s=1e12))
    rate = 1.22 * SEGMENT_BYTES / (0.01 * 0.1)
    assert transfer_s_of(lossy)[0] == pytest.approx(2e7 / rate, rel=0.02)


def test_pushes_hide_behind_the_backward_pass():
    apart, together = cluster(overlap=0.0), cluster(overlap=1.0)
    assert times(together, 512, 512, 512, 512).push_pull_s[0] < 0.3 * times(apart, 512, 512, 512, 512).push_pull_s[0]


def test_a_ring_runs_at_its_slowest_link_and_moves_twice_the_model():
    ring = cluster(
        SimulatedWorker(count=3, latency_s=1e-9), SimulatedWorker(bytes_per_s=1e8, latency_s=1e-9), architecture="ring"
    )
    bytes_, transfer_s, _ = transfers(ring, Conditions(ring, np.random.default_rng(0)))
    assert bytes_[0] == pytest.approx(2 * 0.75 * 2e7)
    assert transfer_s[0] == pytest.approx([2 * 0.75 * 2e7 / 1e8] * 4)


MODEL_BYTES, RATE = 2e7, 1e8


def beside(*rates: float, extra: int = 0) -> Parameters:
    """A cluster with a server on every worker's host, and extra servers."""
    servers = Servers(count=extra, bytes_per_s=RATE, beside_workers=True)
    return cluster(*(SimulatedWorker(bytes_per_s=rate, latency_s=1e-9) for rate in rates), servers=servers)


@pytest.mark.parametrize(("n", "extra"), [(3, 0), (3, 3), (6, 2), (6, 6), (2, 1)])
def test_servers_beside_workers_take_as_long_as_byteps_says(n: int, extra: int):
    limit_s = 2 * n * (n - 1) / (n**2 + extra * n - 2 * extra) * MODEL_BYTES / RATE
    assert transfer_s_of(beside(*[RATE] * n, extra=extra)) == pytest.approx([limit_s] * n, rel=1e-5)


def test_a_host_behind_a_slow_link_serves_nothing_and_sends_its_gradients_once():
    slow, *fast = transfer_s_of(beside(RATE / 4, RATE, RATE))
    assert slow == pytest.approx(4 * MODEL_BYTES / RATE)
    assert fast == pytest.approx([1.5 * MODEL_BYTES / RATE] * 2)


def test_a_server_behind_a_link_that_becomes_slow_delays_everybody():
    slow, *fast = transfer_s_of(beside(RATE, RATE, RATE), bandwidth=(0.25, 1, 1))
    assert slow == pytest.approx(4 * 4 / 3 * MODEL_BYTES / RATE, rel=1e-5)  # its shares do not change
    assert fast == pytest.approx([4 * 2 / 3 * MODEL_BYTES / RATE] * 2, rel=1e-5)  # it sends a third to two others


def test_what_stays_on_a_host_passes_no_link():
    one = beside(RATE)
    assert transfer_s_of(one) == pytest.approx([0], abs=1e-6)
    assert times(one, 64).push_pull_s[0] == pytest.approx(0, abs=1e-6)
