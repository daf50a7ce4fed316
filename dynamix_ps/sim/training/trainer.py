"""Trains a policy in the simulator, on many random clusters at once. A new cluster replaces one whose run has ended.

    window of all clusters -> state -> reward of the last decisions -> next decisions  (_Group._step)
    `rollout_windows` of these -> one update of every network                    (PolicyTrainer.iterate)

The agent, the state and the rewards are the same as in a live run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.errors import PolicyError
from dynamix_ps.policy.learned.agent import VALUE_SCALE, AgentDecision
from dynamix_ps.policy.learned.rewards import GoodputReward, PaperReward, Reward
from dynamix_ps.policy.learned.spaces import fresh_networks, make_agent, policy_spec
from dynamix_ps.policy.learned.state import State
from dynamix_ps.policy.model.cluster import ClusterModel
from dynamix_ps.policy.ppo.actor_critic import ActorCritic
from dynamix_ps.policy.ppo.learning.rollout import Rollout, RolloutBatch
from dynamix_ps.policy.ppo.learning.update import learn
from dynamix_ps.policy.ppo.policy_file import StoredPolicy, load_policy, save_policy
from dynamix_ps.policy.ppo.settings import PpoSettings
from dynamix_ps.sim.cluster.parameters import Parameters
from dynamix_ps.sim.cluster.randomise import draw
from dynamix_ps.sim.cluster.simulator import Simulator

Draw = Callable[[np.random.Generator, int, int], Parameters]  # rng, environments, workers
Mask = NDArray[np.bool_]

# An update in the simulator sees thousands of decisions, each of which shows its effect within a few windows.
LEARNER = PpoSettings(learning_rate=1e-3, gamma=0.6, entropy=0.001, target_kl=0.02, minibatches=16)


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """One training. The paper does not give all values; docs/method.md lists those chosen by us."""

    space: Literal["structured", "paper"] = "structured"
    reward: Reward = field(default_factory=GoodputReward)
    learner: PpoSettings = LEARNER
    n_workers: tuple[int, ...] = (2, 4, 8, 16)  # one group of clusters for each
    environments: int = 128  # clusters at once, over all groups
    rollout_windows: int = 32
    total_windows: int = 1_500_000  # over all clusters
    episode_windows: int = 300  # a run is truncated after so many
    window: int = 20  # iterations per decision, k
    seed: int = 0

    def as_json(self) -> dict[str, Any]:
        """For the provenance of a policy file."""
        return asdict(self) | {"reward": {"name": type(self.reward).__name__, **asdict(self.reward)}}


def paper_settings(**changes: Any) -> TrainSettings:
    """Settings with the paper's actions and reward."""
    chosen: dict[str, Any] = {"space": "paper", "reward": PaperReward()} | changes
    return TrainSettings(**chosen)


@dataclass(frozen=True, slots=True)
class _Pending:
    """Decisions without a reward yet."""

    decided: AgentDecision
    before: NDArray[np.int64]
    state: State
    fresh: Mask  # environments whose run ended before this decision: it is not used


class _Group:
    """Clusters with the same number of workers."""

    def __init__(self, settings: TrainSettings, n_workers: int, environments: int, networks: dict[str, ActorCritic],
                 draw_: Draw, effects: bool, rng: np.random.Generator) -> None:  # fmt: skip
        self._settings = settings
        self._draw, self._rng = draw_, rng
        self._simulator = Simulator(draw_(rng, environments, n_workers), rng)
        model = ClusterModel(environments, n_workers, effects=effects)
        self._agent = make_agent(settings.space, networks, settings.reward, model)
        # runs begin at different ages, so that they end in different rollouts
        self._age = rng.integers(settings.episode_windows, size=environments)
        self._sizes = np.array(self._simulator.sizes)
        self._pending: _Pending | None = None

    def rollout(self, windows: int, learn_normaliser: bool) -> tuple[dict[str, RolloutBatch], dict[str, float]]:
        """Act for so many windows; returns the batch of each network, and mean rewards."""
        rollouts = {name: Rollout(self._settings.learner) for name in self._agent.networks}
        rewards: list[float] = []
        if self._pending is None:
            self._step(None, rewards, learn_normaliser)
        for _ in range(windows):
            self._step(rollouts, rewards, learn_normaliser)
        assert self._pending is not None
        last = self._pending.decided.acted
        batches = {name: rollout.batch(last[name].values) for name, rollout in rollouts.items()}
        return batches, {"reward": float(np.mean(rewards))}

    def _step(self, rollouts: dict[str, Rollout] | None, rewards: list[float], learn_normaliser: bool) -> None:
        window = self._simulator.step(self._sizes)
        state = self._agent.states.observe(window)
        decided = self._agent.decide(state, explore=True, learn_normaliser=learn_normaliser)
        self._age += 1
        ended = self._simulator.done | (self._age >= self._settings.episode_windows)
        if rollouts is not None:
            self._reward(rollouts, state, decided, ended, rewards)
        self._sizes = decided.sizes
        self._pending = _Pending(decided, window.planned, state, ended)
        if ended.any():
            self._restart_ended(ended)

    def _reward(self, rollouts: dict[str, Rollout], state: State, decided: AgentDecision, ended: Mask,
                rewards: list[float]) -> None:  # fmt: skip
        """Store rewards. The end of a run is a truncation: the critic's value replaces the rewards after it."""
        pending = self._pending
        assert pending is not None
        earned = self._agent.rewards(state, pending.before)
        there, were = self._agent.present(state), self._agent.present(pending.state)
        for name, rollout in rollouts.items():
            rows = len(earned[name]) // len(ended)
            present = there[name] & were[name] & ~np.repeat(pending.fresh, rows)
            cut, after = np.repeat(ended, rows), decided.acted[name].values
            rollout.add(pending.decided.acted[name], VALUE_SCALE * earned[name], cut, after, present)
            rewards.append(float(earned[name][present].mean()) if present.any() else 0.0)

    def _restart_ended(self, ended: Mask) -> None:
        """Replace the clusters whose runs have ended."""
        drawn = self._draw(self._rng, int(ended.sum()), self._sizes.shape[1])
        self._simulator.replace(ended, drawn)
        self._agent.restart(ended)
        self._age = np.where(ended, 0, self._age)
        self._sizes = np.where(ended[:, None], self._simulator.sizes, self._sizes)


class PolicyTrainer:
    """A training in progress. `windows` counts the windows of all clusters so far.

    Args:
        stored: start from these weights; None: from new ones.
        draw_: draws new clusters; by default `draw` of sim/cluster/randomise.py.
    """

    def __init__(self, settings: TrainSettings, rng: np.random.Generator, stored: StoredPolicy | None = None,
                 draw_: Draw | None = None) -> None:  # fmt: skip
        self.settings = settings
        self.windows = 0
        self._rng = rng
        self.spec = policy_spec(settings.space, settings.learner.hidden)
        self.networks = (
            fresh_networks(self.spec, settings.learner, rng)
            if stored is None
            else {name: ActorCritic(weights, settings.learner, rng) for name, weights in stored.networks.items()}
        )
        chosen: Draw = draw_ or (lambda rng, environments, n: draw(rng, environments, n, settings.window))
        effects = draw_ is not None  # clusters that `draw` draws have none
        each = max(settings.environments // len(settings.n_workers), 1)
        self._groups = [_Group(settings, n, each, self.networks, chosen, effects, rng) for n in settings.n_workers]
        self._windows_per_iteration = each * len(settings.n_workers) * settings.rollout_windows

    @property
    def finished(self) -> bool:
        return self.windows >= self.settings.total_windows

    def iterate(self) -> dict[str, float]:
        """One rollout and one update of every network; returns diagnostics, named network/quantity."""
        done = self.windows / self.settings.total_windows
        rate = self.settings.learner.learning_rate * max(1 - done, 0.02)
        parts = [group.rollout(self.settings.rollout_windows, learn_normaliser=done < 0.1) for group in self._groups]
        diagnostics = {"reward": float(np.mean([shown["reward"] for _, shown in parts])), "learning_rate": rate}
        for name, network in self.networks.items():
            batch = RolloutBatch.joined([batches[name] for batches, _ in parts])
            diagnostics |= {f"{name}/{key}": value for key, value in learn(network, batch, rate).items()}
        self.windows += self._windows_per_iteration
        return diagnostics | {"windows": float(self.windows)}

    def stored(self, provenance: Mapping[str, Any]) -> StoredPolicy:
        """The present policy; its provenance includes the settings."""
        about = {"origin": "simulator", "windows": self.windows, "settings": self.settings.as_json()}
        networks = {name: network.weights for name, network in self.networks.items()}
        return StoredPolicy(networks, self.spec, {**about, **provenance})

    def checkpoint(self, file: Path) -> None:
        """Save what `resume` needs; simulated runs in progress are not saved. Raises OSError."""
        save_policy(file, self.stored({"rng": json.dumps(self._rng.bit_generator.state, default=int)}))

    @staticmethod
    def resume(file: Path, settings: TrainSettings, draw_: Draw | None = None) -> PolicyTrainer:
        """Continue from a checkpoint, with new simulated runs.

        Raises:
            PolicyError: the file is unusable, or its training has other settings.
        """
        stored = load_policy(file, policy_spec(settings.space, settings.learner.hidden))
        found = json.dumps(stored.provenance.get("settings"), sort_keys=True)
        wanted = json.dumps(settings.as_json(), sort_keys=True)
        if found != wanted:
            raise PolicyError(
                f"{file}: found a training with settings {found}, expected {wanted}; begin a new training"
            )
        rng = np.random.default_rng()
        try:
            rng.bit_generator.state = json.loads(str(stored.provenance["rng"]))
            windows = int(stored.provenance["windows"])
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise PolicyError(f"{file}: damaged: {type(error).__name__}: {error}; begin a new training") from error
        trainer = PolicyTrainer(settings, rng, stored, draw_)
        trainer.windows = windows
        return trainer
