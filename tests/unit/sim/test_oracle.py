"""The oracle: nothing that was tried is faster, and it takes part in contests."""

from __future__ import annotations

import numpy as np
import pytest

from dynamix_ps.config.schema import PolicySection
from dynamix_ps.sim.cluster import learning
from dynamix_ps.sim.cluster.cost import iteration_times
from dynamix_ps.sim.cluster.parameters import parameters_of
from dynamix_ps.sim.cluster.simulator import Simulator
from dynamix_ps.sim.contest.contest import compete
from dynamix_ps.sim.contest.oracle import oracle_sizes
from dynamix_ps.sim.scenario.load import load_scenario
from dynamix_ps.sim.scenario.parts import Bounds

NAMES = (
    "homogeneous",
    "h-level-8",
    "slow-link",
    "noisy-neighbour",
    "h-level-2",
    "tile-steps",
    "cliffs",
    "shared-hosts",
    "heat",
    "all-effects",
)


def simulator_of(name: str, windows: int = 30) -> Simulator:
    simulator = Simulator(parameters_of([load_scenario(name)] * 3), np.random.default_rng(0))
    for _ in range(windows):
        simulator.step(simulator.sizes)
    return simulator


def progress_per_s(simulator: Simulator, sizes: np.ndarray) -> np.ndarray:
    """(K, E) of plans (K, E, W)."""
    parameters = simulator.parameters
    noise_scale = learning.noise_scale(parameters, learning.excess_loss(parameters, simulator.progress))
    real, calm = sizes.astype(np.float32), np.zeros(parameters.initial.shape, dtype=np.float32)
    duration_s = iteration_times(parameters, simulator.conditions, real, calm).iteration_s
    return learning.step_progress(parameters, noise_scale, real.sum(axis=-1)) / duration_s


@pytest.mark.parametrize("name", NAMES)
def test_no_change_of_its_sizes_makes_progress_faster(name: str):
    """One worker more or less, all more or less, and plans at random: within half a percent nothing is better."""
    simulator, rng = simulator_of(name), np.random.default_rng(1)
    best = oracle_sizes(simulator)
    factors = [np.full(8, factor) for factor in (0.5, 0.8, 0.95, 1.05, 1.25, 2.0)]
    for rank in range(8):
        factors += [np.where(np.arange(8) == rank, factor, 1.0) for factor in (0.7, 0.9, 0.97, 1.03, 1.1, 1.4)]
    factors += list(np.exp(rng.normal(0, 0.3, (300, 8)))) + list(np.exp(rng.normal(0, 0.05, (300, 8))))
    plans = np.rint(np.array(factors)[:, None, :] * best).astype(np.int64)
    plans = np.clip(plans, simulator.parameters.low, simulator.parameters.high)
    assert (progress_per_s(simulator, plans).max(axis=0) <= 1.005 * progress_per_s(simulator, best[None])[0]).all()


def test_its_sizes_end_tiles_and_lie_within_the_bounds():
    simulator = simulator_of("tile-steps")
    sizes = oracle_sizes(simulator)
    assert (sizes % [64, 64, 64, 64, 32, 32, 128, 128] == 0).mean() > 0.9
    narrow = load_scenario("homogeneous").model_copy(update={"batch": Bounds(min=16, max=64)})
    bounded = Simulator(parameters_of([narrow]), np.random.default_rng(0))
    for _ in range(60):
        bounded.step(oracle_sizes(bounded))
    assert bounded.sizes.tolist() == [[64] * 8]


def test_it_knows_the_coming_window():
    """Two workers become slow in the next window: it takes samples from them before anybody has seen it."""
    simulator = simulator_of("recurring", windows=0)
    while not (slow := simulator.conditions.slow[0] > 1).any():
        simulator.step(simulator.sizes)
    with_it, simulator.conditions.slow = oracle_sizes(simulator), np.ones_like(simulator.conditions.slow)
    without_it = oracle_sizes(simulator)
    assert (with_it[0, slow] < 0.6 * without_it[0, slow]).all()


@pytest.mark.slow
def test_no_policy_is_faster_in_a_contest():
    scenario = load_scenario("h-level-8").with_workers(4)
    policies = {"goodput": PolicySection(name="goodput"), "pid": PolicySection(name="pid"), "oracle": None}
    contest = compete([scenario], policies, seeds=2, seed=0, processes=1)
    assert contest.outcomes["oracle", scenario.name].reached.all()
    ours = contest.counted_s("oracle", scenario.name)
    for name in ("goodput", "pid"):
        assert (ours < contest.counted_s(name, scenario.name)).all()
