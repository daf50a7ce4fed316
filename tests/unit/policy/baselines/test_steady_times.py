"""`pid` and `proportional` on times that scatter: few changes, and balance as good as before."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dynamix_ps.policy.base import Policy
from dynamix_ps.policy.baselines.pid import PidPolicy
from dynamix_ps.policy.baselines.proportional import ProportionalPolicy
from dynamix_ps.policy.baselines.steady_times import LONGEST_WAIT
from dynamix_ps.sim.cluster.parameters import parameters_of
from dynamix_ps.sim.cluster.simulator import Simulator
from dynamix_ps.sim.scenario.load import load_scenario
from tests.policy_cluster import SmallCluster

WINDOWS, MOST_CHANGES, SEEDS = 24, 4, 10
H_LEVEL_8 = [1 / per_sample_s for per_sample_s in (4e-4,) * 4 + (6e-4,) * 2 + (7.5e-5,) * 2]  # samples per second

steady = pytest.mark.parametrize(
    "make",
    [PidPolicy, lambda n: PidPolicy(n, keep_global=True), ProportionalPolicy],
    ids=["pid", "pid-keep", "proportional"],
)


def spread(times_s: np.ndarray) -> float:
    """(longest - shortest) / mean."""
    return float(np.ptp(times_s) / times_s.mean())


@steady
@pytest.mark.parametrize("iterations", [20, 1])  # times scatter by 4 % from iteration to iteration, or window to window
def test_few_changes_at_h_level_8(make: Callable[[int], Policy], iterations: int) -> None:
    scenario = load_scenario("h-level-8").model_copy(update={"jitter": 0.04, "window": iterations})
    exact = parameters_of((scenario.model_copy(update={"jitter": 0.0}),))
    changes, spreads = [], []
    for seed in range(SEEDS):
        simulator = Simulator(parameters_of((scenario,)), np.random.default_rng(seed))
        policy, sizes, changed = make(scenario.n_workers), simulator.sizes, 0
        for _ in range(WINDOWS):
            simulator.step(sizes)
            view = simulator.views()[0]
            wanted = policy.decide(view).batch_sizes
            changed += wanted != view.plan.batch_sizes
            sizes = np.array([wanted])
        still = Simulator(exact, np.random.default_rng(0))
        still.step(sizes)
        assert still.times is not None
        changes.append(changed)
        spreads.append(spread(still.times.compute_s[0]))
    assert max(changes) <= MOST_CHANGES
    assert np.mean(spreads) < (0.06 if iterations == 1 else 0.03)
    assert max(spreads) < 0.13


@steady
@pytest.mark.parametrize("fixed_s", [0.0, 0.02])
def test_few_changes_whatever_part_of_the_time_is_fixed(make: Callable[[int], Policy], fixed_s: float) -> None:
    spreads = []
    for seed in range(SEEDS):
        cluster = SmallCluster(H_LEVEL_8, fixed_s=fixed_s, start=64, low=8, jitter=0.04, seed=seed)
        policy = make(len(H_LEVEL_8))
        cluster.run(policy, WINDOWS)
        assert cluster.plan.version <= MOST_CHANGES
        spreads.append(spread(cluster.compute_s(cluster.plan.batch_sizes)))
    assert np.mean(spreads) < 0.07


@steady
def test_a_jump_of_speed_is_answered_at_once_after_any_calm(make: Callable[[int], Policy]) -> None:
    cluster = SmallCluster([100.0, 100.0, 100.0], fixed_s=0.0, start=64, low=8, jitter=0.005)
    policy = make(3)
    cluster.run(policy, 3 * LONGEST_WAIT)
    cluster.speeds[1] = 50.0
    slow, after = cluster.plan.batch_sizes[1], cluster.step(policy).batch_sizes[1]
    assert after < 0.75 * slow


@steady
def test_small_corrections_wait_longer_and_longer(make: Callable[[int], Policy]) -> None:
    """A worker whose speed goes up and down by 15 % in turn: no jump, but always outside the dead-band."""
    cluster = SmallCluster([100.0, 100.0], fixed_s=0.0, start=64, low=8)
    policy, changed = make(2), []
    for window in range(40):
        cluster.speeds[0] = 100.0 if window % 2 else 120.0
        before = cluster.plan
        cluster.step(policy)
        changed += [window] if cluster.plan != before else []
    waits = np.diff(changed)
    assert len(changed) <= 5
    assert (waits >= [2, 4, 8, 16][: len(waits)]).all()
