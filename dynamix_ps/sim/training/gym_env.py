"""One simulated cluster as a gymnasium environment, for agents of other libraries.

    import gymnasium, dynamix_ps.sim.training.gym_env
    env = gymnasium.make("dynamix/Cluster-v0", scenario="h-level-4")

A step is one window. One agent decides for all workers: in the space `structured` it changes the global batch and every
worker's share, in `paper` every worker's size (policy/learned).
"""

from __future__ import annotations

from typing import Any, Literal

import gymnasium
import numpy as np
from numpy.typing import NDArray

from dynamix_ps.apportion import Whole
from dynamix_ps.policy.learned.features import ALL, LOCAL
from dynamix_ps.policy.learned.paper import PAPER_STEPS, paper_sizes
from dynamix_ps.policy.learned.rewards import GoodputReward, PaperReward, Reward
from dynamix_ps.policy.learned.state import State, StateBuilder
from dynamix_ps.policy.learned.structured import (
    BATCH_STEPS,
    SHARE_STEPS,
    batch_target,
    structured_sizes,
)
from dynamix_ps.policy.model.advice import Advisor, advised_batch
from dynamix_ps.policy.model.cluster import ClusterModel
from dynamix_ps.sim.cluster.parameters import Parameters, parameters_of
from dynamix_ps.sim.cluster.randomise import draw
from dynamix_ps.sim.cluster.simulator import Simulator
from dynamix_ps.sim.scenario.load import Scenario, load_scenario

Observation = NDArray[np.float32]
Action = NDArray[np.int64]

_REACH = np.array([max(abs(one.low), abs(one.high)) for one in ALL])
_WIDE = _REACH >= 100  # values over orders of magnitude: observed as logarithms


class ClusterEnv(gymnasium.Env[Observation, Action]):
    """Observation: the shared values, those of worker 0, 1, ..., then for each value 1 if it is known, else 0.

    The values are the features of policy/learned/features.py, scaled to [-1, 1]; an unknown value is 0. The reward is
    the cluster's reward in the space (policy/learned/rewards.py). Terminated: the target accuracy is reached.
    Truncated: the scenario's `max_windows` are over. `info`: time_s, test_accuracy, sizes.

    Args:
        scenario: name of a scenario that ships, a file, or a Scenario; None: a random cluster in every episode.
        space: the action space, `structured` or `paper`.
        n_workers: number of workers of random clusters.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - as gymnasium declares it

    def __init__(
        self,
        scenario: Scenario | str | None = None,
        space: Literal["structured", "paper"] = "structured",
        n_workers: int = 8,
    ) -> None:
        given = load_scenario(scenario) if isinstance(scenario, str) else scenario
        self._fixed = None if given is None else parameters_of([given])
        self._workers = n_workers if given is None else given.n_workers
        self._space = space
        self._reward: Reward = PaperReward() if space == "paper" else GoodputReward()
        length = 2 * (len(ALL) - len(LOCAL) + self._workers * len(LOCAL))
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (length,), np.float32)
        steps = [len(PAPER_STEPS)] * self._workers
        if space == "structured":
            steps = [len(BATCH_STEPS), *[len(SHARE_STEPS)] * self._workers]
        self.action_space = gymnasium.spaces.MultiDiscrete(steps)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin a new run and train its first window with the initial sizes."""
        super().reset(seed=seed, options=options)
        parameters: Parameters = draw(self.np_random, 1, self._workers) if self._fixed is None else self._fixed
        self._simulator = Simulator(parameters, self.np_random)
        self._model = model = ClusterModel(1, self._workers)
        self._states, self._advisor = StateBuilder(model), Advisor(model)
        self._state = self._window(self._simulator.sizes)
        return self._observation(), self._info()

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        before = self._simulator.sizes
        self._state = self._window(self._sizes(action))
        reward = float(self._reward.of_cluster(self._state, before)[0])
        done, truncated = bool(self._simulator.done[0]), bool(self._simulator.truncated[0])
        return self._observation(), reward, done, truncated, self._info()

    def _window(self, sizes: Whole) -> State:
        state = self._states.observe(self._simulator.step(sizes))
        self._advice = self._advisor.observe(state.window, state.network, state.noise_scale)
        return state

    def _sizes(self, action: Action) -> Whole:
        window, chosen = self._state.window, np.asarray(action)[None]
        if self._space == "paper":
            return paper_sizes(window.planned, chosen, window.low, window.high)
        reference = advised_batch(window, self._advice[..., 0])
        total = batch_target(window, reference, chosen[:, 0])
        return self._model.filled(structured_sizes(window, total, self._advisor, chosen[:, 1:]))

    def _observation(self) -> Observation:
        rows = self._state.rows[0]
        scaled = np.where(_WIDE, np.sign(rows) * np.log1p(np.abs(rows)) / np.log1p(_REACH), rows / _REACH)
        values = np.concatenate([scaled[0, len(LOCAL) :], scaled[:, : len(LOCAL)].reshape(-1)])
        observation: Observation = np.concatenate([np.nan_to_num(values), np.isfinite(values)]).astype(np.float32)
        return observation

    def _info(self) -> dict[str, Any]:
        simulator = self._simulator
        return {
            "time_s": float(simulator.time_s[0]),
            "test_accuracy": float(simulator.test_accuracy[0]),
            "sizes": simulator.sizes[0].copy(),
        }


gymnasium.register("dynamix/Cluster-v0", entry_point="dynamix_ps.sim.training.gym_env:ClusterEnv")
