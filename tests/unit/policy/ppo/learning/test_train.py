from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from dynamix_ps.errors import PolicyError
from dynamix_ps.policy.ppo.learning.train import TrainConfig, train
from dynamix_ps.policy.ppo.settings import PpoSettings

LENGTH = 5


class Signs(gymnasium.Env[np.ndarray, int]):
    """Pays for action 3 where the number seen is negative and for action 4 where not. Numbers come in a square."""

    def __init__(
        self, terminates: bool = True, length: int = LENGTH, pays_always: bool = False, pay: float = 1.0
    ) -> None:
        self.observation_space = Box(-1, 1, (1, 1), np.float64)
        self.action_space = Discrete(2, start=3)
        self._terminates, self._length, self._pays_always, self._pay = terminates, length, pays_always, pay
        self.closed = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._step = 0
        return self._look(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self._step < self._length, "stepped after the end"
        assert action in self.action_space
        right = action == (3 if self._seen[0, 0] < 0 else 4)
        self._step += 1
        end = self._step == self._length
        reward = self._pay * float(right or self._pays_always)
        return self._look(), reward, end and self._terminates, end and not self._terminates, {}

    def close(self) -> None:
        self.closed = True

    def _look(self) -> np.ndarray:
        self._seen = self.np_random.uniform(-1, 1, (1, 1))
        return self._seen


SMALL = TrainConfig(PpoSettings(learning_rate=1e-2, gamma=0.5), n_envs=4, n_steps=32)


@pytest.mark.parametrize("learner", ["clip", "simple"])
@pytest.mark.parametrize("normalise", [True, False])
def test_learns(learner: str, normalise: bool) -> None:
    episodes: list[tuple[int, float]] = []
    settings = PpoSettings(learner=learner, learning_rate=1e-2, gamma=0.5, normalise=normalise)  # type: ignore[arg-type]
    config = TrainConfig(settings, n_envs=4, n_steps=32)
    agent = train(Signs, 4000, 0, config, lambda steps, total: episodes.append((steps, total)))
    steps, totals = np.array(episodes).T
    assert (np.diff(steps) >= 0).all()
    assert totals[:20].mean() < 0.75 * LENGTH
    assert totals[-20:].mean() > 0.9 * LENGTH
    greedy = agent.act(np.array([[-0.9], [0.9]]), explore=False)
    np.testing.assert_array_equal(greedy.actions, [0, 1])


def test_runs_for_so_many_steps_and_completes_the_last_rollout() -> None:
    episodes: list[tuple[int, float]] = []
    train(Signs, 300, 0, SMALL, lambda steps, total: episodes.append((steps, total)))
    assert episodes[-1][0] == 380  # of 384
    assert len(episodes) == 4 * (96 // LENGTH)


@pytest.mark.parametrize(("terminates", "value"), [(True, 1.0), (False, 2.0)])
def test_what_is_broken_off_by_a_limit_is_worth_more_than_what_ends(terminates: bool, value: float) -> None:
    # every step pays 1 and every episode has one: 1 if it ends, 1 + 1/2 + 1/4 + ... if it is merely broken off
    agent = train(lambda: Signs(terminates, length=1, pays_always=True), 12_000, 0, SMALL)
    assert agent.values(np.array([[0.3]]))[0] == pytest.approx(value, abs=0.15)


def test_same_seed_same_bits() -> None:
    first, second, other = (train(Signs, 300, seed, SMALL).weights.params.flat.tobytes() for seed in (1, 1, 2))
    assert first == second
    assert first != other


@pytest.mark.parametrize("scale_rewards", [True, False])
def test_scaled_rewards_have_no_unit(scale_rewards: bool) -> None:
    """Otherwise the critic is far from large returns for long, and its error drives the policy to a single action."""
    config = TrainConfig(SMALL.settings, 4, 32, scale_rewards=scale_rewards)
    few, many = (train(lambda pay=pay: Signs(pay=pay), 300, 0, config) for pay in (1.0, 1024.0))  # type: ignore[misc]
    assert (few.weights.params.flat == many.weights.params.flat).all() == scale_rewards


def test_the_learning_rate_falls_unless_told_otherwise() -> None:
    falling = train(Signs, 300, 0, SMALL).weights.params.flat
    steady = train(Signs, 300, 0, TrainConfig(SMALL.settings, 4, 32, anneal=False)).weights.params.flat
    assert (falling != steady).any()


def test_environments_are_closed_even_after_an_error() -> None:
    made: list[Signs] = []

    def make() -> Signs:
        made.append(Signs())
        return made[-1]

    def fail(_steps: int, _total: float) -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        train(make, 100, 0, SMALL, fail)
    assert [env.closed for env in made] == [True] * 4


@pytest.mark.parametrize(
    ("actions", "observations"),
    [(Box(0, 1), Box(0, 1)), (Discrete(2), Discrete(3)), (Discrete(2), Dict({"a": Box(0, 1)}))],
)
def test_other_spaces_are_refused(actions: Any, observations: Any) -> None:
    class Other(Signs):
        def __init__(self) -> None:
            super().__init__()
            self.action_space, self.observation_space = actions, observations

    with pytest.raises(PolicyError, match="expected Discrete and Box"):
        train(Other, 100, 0)
