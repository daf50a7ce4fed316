"""The learned policy decides the same for one live cluster and for the environments of the simulator."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dynamix_ps.policy.base import View
from dynamix_ps.policy.learned.agent import AgentDecision, LearnedAgent
from dynamix_ps.policy.learned.features import LOCAL, NAMES
from dynamix_ps.policy.learned.rewards import GoodputReward, PaperReward
from dynamix_ps.policy.learned.spaces import fresh_networks, make_agent, policy_spec
from dynamix_ps.policy.learned.state import State, StateBuilder
from dynamix_ps.policy.learned.structured import _pooled
from dynamix_ps.policy.model.advice import ADVICE
from dynamix_ps.policy.model.cluster import ClusterModel
from dynamix_ps.policy.ppo.actor_critic import ActorCritic
from dynamix_ps.policy.ppo.settings import PpoSettings
from dynamix_ps.policy.window_arrays import WindowArrays, arrays_of
from dynamix_ps.sim.cluster.randomise import draw
from dynamix_ps.sim.cluster.simulator import Simulator
from tests.control_plane import stacked

ENVIRONMENTS, WORKERS, WINDOWS = 5, 4, 12
SPACES = ("structured", "paper")
Seen = list[list[WindowArrays]]  # by window, by environment


def some_networks(space: str) -> dict[str, ActorCritic]:
    """With weights so large that different states bring different actions."""
    networks = fresh_networks(policy_spec(space, 16), PpoSettings(hidden=16), np.random.default_rng(1))
    for network in networks.values():
        network.weights.params.flat[:] *= 3
        matrix, bias = network.weights.params.actor[-1]
        matrix[:] *= 50
        bias[:] = 0
    return networks


def agent(space: str, networks: dict[str, ActorCritic], *shape: int) -> LearnedAgent:
    reward = GoodputReward() if space == "structured" else PaperReward()
    return make_agent(space, networks, reward, ClusterModel(*shape))


@pytest.fixture(scope="module")
def seen() -> Seen:
    """Windows of random clusters under wandering sizes, with workers that are away for a while."""
    rng = np.random.default_rng(3)
    simulator = Simulator(draw(rng, ENVIRONMENTS, WORKERS), rng)
    windows: Seen = []
    for number in range(WINDOWS):
        moved = np.rint(simulator.sizes * np.exp2(rng.uniform(-0.7, 0.7, simulator.sizes.shape))).astype(np.int64)
        simulator.step(np.clip(moved, simulator.parameters.low, simulator.parameters.high))
        views = simulator.views()
        if 4 <= number < 7:
            views = [one if e % 2 else without(one, e % WORKERS) for e, one in enumerate(views)]
        windows.append([arrays_of(one) for one in views])
    return windows


def without(seen: View, rank: int) -> View:
    return dataclasses.replace(
        seen, records=tuple(None if r is not None and r.rank == rank else r for r in seen.records)
    )


def normalised(space: str, windows: Seen) -> dict[str, ActorCritic]:
    """Agents whose normalisers know these windows."""
    networks = some_networks(space)
    deciding = agent(space, networks, ENVIRONMENTS, WORKERS)
    for all_ in windows:
        deciding.decide(deciding.states.observe(stacked(all_)), explore=False, learn_normaliser=True)
    return networks


def run(deciding: LearnedAgent, windows: list[WindowArrays]) -> list[tuple[State, AgentDecision]]:
    result = []
    for window in windows:
        state = deciding.states.observe(window)
        result.append((state, deciding.decide(state, explore=False)))
    return result


@pytest.mark.parametrize("space", SPACES)
def test_several_environments_decide_as_one_by_one_and_as_a_live_cluster(space: str, seen: Seen) -> None:
    networks = normalised(space, seen)
    deciding = agent(space, networks, ENVIRONMENTS, WORKERS)
    together = run(deciding, [stacked(one) for one in seen])
    chosen: set[int] = set()
    for e in range(ENVIRONMENTS):
        one = [windows[e] for windows in seen]
        live_agent = agent(space, networks, WORKERS)
        live = run(live_agent, one)
        alone = run(agent(space, networks, 1, WORKERS), [stacked([window]) for window in one])
        for (state, decided), (_, by_itself), (all_, many) in zip(live, alone, together, strict=True):
            assert decided.sizes.shape == (WORKERS,)
            np.testing.assert_array_equal(decided.sizes, by_itself.sizes[0])
            np.testing.assert_array_equal(decided.sizes, many.sizes[e])
            before = np.full(WORKERS, 64)
            rewards = live_agent.rewards(state, before)
            others = deciding.rewards(all_, np.tile(before, (ENVIRONMENTS, 1)))
            there, theirs = live_agent.present(state), deciding.present(all_)
            for name, acted in decided.acted.items():
                rows = len(acted.actions)
                mine = slice(e * rows, (e + 1) * rows)
                assert rows == len(rewards[name]) == len(there[name]) == (1 if name == "batch" else WORKERS)
                np.testing.assert_array_equal(acted.actions, many.acted[name].actions[mine])
                np.testing.assert_allclose(rewards[name], others[name][mine], rtol=1e-9)
                np.testing.assert_array_equal(there[name], theirs[name][mine])
                chosen |= set(acted.actions.tolist())
    assert len(chosen) > 3  # or this test says nothing


@pytest.mark.parametrize("space", SPACES)
def test_a_restarted_environment_is_like_new_and_the_others_go_on(space: str, seen: Seen) -> None:
    networks, half = normalised(space, seen), WINDOWS // 2
    shape = (ENVIRONMENTS, WORKERS)
    first = agent(space, networks, *shape)
    fresh = run(agent(space, networks, *shape), [stacked(one) for one in seen[half:]])
    whole = run(agent(space, networks, *shape), [stacked(one) for one in seen])[half:]
    run(first, [stacked(one) for one in seen[:half]])
    restarted = np.arange(ENVIRONMENTS) == 2
    first.restart(restarted)
    later = run(first, [stacked(one) for one in seen[half:]])
    for (_, got), (_, new), (_, old) in zip(later, fresh, whole, strict=True):
        np.testing.assert_array_equal(got.sizes[2], new.sizes[2])
        np.testing.assert_array_equal(got.sizes[~restarted], old.sizes[~restarted])


@pytest.mark.parametrize("space", SPACES)
def test_exploring_draws_and_inference_does_not(space: str, seen: Seen) -> None:
    networks = normalised(space, seen)

    def sizes(explore: bool) -> list[int]:
        deciding = agent(space, networks, ENVIRONMENTS, WORKERS)
        sizes: list[int] = (
            deciding.sizes(deciding.states.observe(stacked(seen[0])), deciding.choices(explore=explore))
            .ravel()
            .tolist()
        )
        return sizes

    assert sizes(False) == sizes(False)
    for network in networks.values():
        network.weights.params.flat[:] = 0  # all actions alike
    assert sizes(True) != sizes(True)


def test_a_spec_names_one_input_per_column_of_what_the_networks_see(seen: Seen) -> None:
    for space in SPACES:
        spec = policy_spec(space, 16)
        networks = fresh_networks(spec, PpoSettings(hidden=16), np.random.default_rng(0))
        deciding = agent(space, networks, ENVIRONMENTS, WORKERS)
        acted = deciding.decide(deciding.states.observe(stacked(seen[0])), explore=False).acted
        for name, features in spec.features.items():
            assert acted[name].rows.shape[1] == 2 * len(features)
            assert len(set(features)) == len(features)


def test_a_cluster_is_seen_by_the_mean_and_the_largest_of_the_workers_that_are_there(seen: Seen) -> None:
    names = policy_spec("structured", 16).features["batch"]
    state = StateBuilder(ClusterModel(WORKERS)).observe(seen[4][0])
    pooled = dict(zip(names, _pooled(state, np.array([1.0, 2.0, 3.0]))[0], strict=True))
    batches = state.rows[state.window.present, NAMES.index("batch")]
    assert len(batches) == WORKERS - 1
    assert pooled["mean batch"] == pytest.approx(batches.mean())
    assert pooled["max batch"] == pytest.approx(batches.max())
    assert pooled["workers"] == pytest.approx(np.log2(WORKERS))
    assert [pooled[name] for name in ADVICE] == [1.0, 2.0, 3.0]
    unknown = [bool(np.isnan(column).all()) for column in state.rows[:, : len(LOCAL)].T]
    assert any(unknown)
    for name, nowhere in zip(NAMES, unknown, strict=False):  # NAMES goes on with what all share
        assert np.isnan(pooled[f"mean {name}"]) == np.isnan(pooled[f"max {name}"]) == nowhere
