"""A network that corrects linear decay of the learning rate, in the simulator: what it sees, does and is rewarded for.

    window of all trainings -> view (RateView) -> action: a step of the correction c -> the plan's factor

The factor is the allowed step (policy/rate/limits.py) nearest to c times that of linear decay (policy/rate/decay.py),
so the action 0, which an untrained network prefers, is the rule. The reward of a window is the fall of the logarithm of
the loss of averaged weights. Its sum over a training is what the training achieves, so it does not favour early decay
where gamma is near 1. All of this is chosen by us.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.policy.base import LR_RULES
from dynamix_ps.policy.model.efficiency import NoiseScale
from dynamix_ps.policy.ppo.actor_critic import ActorCritic
from dynamix_ps.policy.ppo.rollout import Rollout
from dynamix_ps.policy.ppo.settings import Settings
from dynamix_ps.policy.rate.decay import decayed
from dynamix_ps.policy.rate.limits import STEPS, RateLimits, nearest, stepped
from dynamix_ps.policy.window_arrays import WindowArrays
from dynamix_ps.rpc.plan_rules import LARGEST_LR_FACTOR, SMALLEST_LR_FACTOR
from dynamix_ps.sim.cluster.parameters import Parameters
from dynamix_ps.sim.cluster.randomise_workloads import draw_workloads
from dynamix_ps.sim.cluster.simulator import Simulator
from dynamix_ps.sim.scenario.parts import WorkloadName

Array = NDArray[np.floating[Any]]
Act = Callable[[Array], NDArray[np.int64]]  # rows -> index into STEPS

SLOW, FAST = 0.9, 0.5  # weight of the past in the two means of the loss
RECENT = 0.97  # by so much the recent minimum comes up in every window
LEARNS_NORMALISER = 0.1  # of the training
PRIOR = 2.0  # logit by which an untrained network prefers to follow the rule
FOLLOW = STEPS.index(1.0)
FEATURES = (
    "stage of the budget", "windows of the budget, log2", "factor, log2", "correction, log2", "guard, log2",
    "B over B_0, log2", "noise scale over B, log2", *(f"rule {name}" for name in LR_RULES), "loss, log",
    "fall of the loss since the last window", "fall of its mean", "fast over slow mean, log",
    "loss over its recent minimum, log",
)  # fmt: skip
LEARNER = Settings(learning_rate=1e-3, gamma=0.998, gae_lambda=0.95, entropy=0.003, target_kl=0.02, minibatches=8)


class RateView:
    """What the network sees of E trainings: records and the state of the decision, nothing hidden."""

    def __init__(self, environments: int) -> None:
        self._noise = NoiseScale(environments)
        self._slow, self._fast, self._least, self._last = (np.full(environments, np.nan) for _ in range(4))

    def restart(self, which: NDArray[np.bool_]) -> None:
        self._noise.restart(which)
        for one in (self._slow, self._fast, self._least, self._last):
            one[which] = np.nan

    def observe(self, window: WindowArrays, windows: NDArray[np.int64], correction: Array, guard: Array) -> Array:
        """(E, FEATURES) after a window, NaN where unknown; `windows` are those of each training so far."""
        self._noise.observe(window)
        loss = np.log(np.maximum(window.global_loss, 1e-6))
        slow_before = self._slow
        self._slow, self._fast = (
            np.where(np.isnan(mean), loss, weight * mean + (1 - weight) * loss)
            for mean, weight in ((self._slow, SLOW), (self._fast, FAST))
        )
        self._least = np.fmin(self._least - np.log(RECENT), self._fast)
        stage = np.asarray(window.trained_ratio)
        batch = np.maximum(window.global_batch, 1)
        rules = [window.lr_rule == index for index in range(len(LR_RULES))]
        columns = (
            stage, np.log2(windows / np.maximum(stage, 1e-3)), np.log2(window.lr_ratio), np.log2(correction),
            np.log2(guard), np.log2(batch / window.reference_batch), np.log2(self._noise.expected / batch + 1e-3),
            *rules, loss, self._last - loss, slow_before - self._slow, self._fast - self._slow,
            self._fast - self._least,
        )  # fmt: skip
        self._last = loss
        return np.stack([np.asarray(column, dtype=np.float64) for column in columns], axis=-1)


class Trainings:
    """E trainings whose learning rate is decided on, at B_0; the limits are those of a run."""

    def __init__(self, parameters: Parameters, rng: np.random.Generator, *, guarded: bool = True) -> None:
        environments = parameters.environments
        self.simulator = Simulator(parameters, rng, guarded=guarded)
        self._view = RateView(environments)
        self._limits = [RateLimits() for _ in range(environments)]
        self.correction = np.ones(environments)
        self.factor = np.ones(environments)

    def window(self) -> tuple[Array, Array]:
        """Train one window; what is seen, and the reward of what was decided before."""
        simulator = self.simulator
        before = np.log(simulator.workload.averaged)
        window = simulator.step(simulator.sizes, self.factor)
        guard, k = simulator.workload.guard, simulator.parameters.window
        for limits, number_of, length, factor in zip(
            self._limits, simulator.windows.tolist(), k.tolist(), (self.factor * guard).tolist(), strict=True
        ):
            limits.observe((number_of - 1) * length, number_of * length, factor)
        self._stage = np.asarray(window.trained_ratio)
        rows = self._view.observe(window, simulator.windows, self.correction, guard)
        return rows, before - np.log(simulator.workload.averaged)

    def decide(self, actions: NDArray[np.int64], *, decays: bool = True) -> None:
        """Change the correction by these steps, and the factors towards corrected linear decay, or the correction."""
        moved = self.correction * np.array(STEPS)[actions]
        self.correction = np.clip(moved, SMALLEST_LR_FACTOR, LARGEST_LR_FACTOR)
        for e, (limits, stage) in enumerate(zip(self._limits, self._stage.tolist(), strict=True)):
            present = float(self.factor[e])
            wanted = (decayed(stage, 1.0) if decays else 1.0) * float(self.correction[e])
            within = [s for s in limits.allowed() if SMALLEST_LR_FACTOR <= stepped(present, s) <= LARGEST_LR_FACTOR]
            self.factor[e] = stepped(present, nearest(wanted / present, tuple(within or (1.0,))))

    def replace(self, which: NDArray[np.bool_], others: Parameters) -> None:
        """Begin other trainings."""
        self.simulator.replace(which, others)
        self._view.restart(which)
        self.correction[which] = self.factor[which] = 1.0
        for e in np.flatnonzero(which):
            self._limits[e] = RateLimits()


def fresh_network(rng: np.random.Generator) -> ActorCritic:
    """Untrained: it prefers to follow the rule."""
    network = ActorCritic.fresh(len(FEATURES), len(STEPS), LEARNER, rng)
    _, last_bias = network.weights.params.actor[-1]
    last_bias[FOLLOW] = PRIOR
    return network


@dataclass(frozen=True, slots=True)
class RateTraining:
    """How a network is trained."""

    total_windows: int = 500_000
    environments: int = 192
    rollout_windows: int = 64
    n_workers: int = 3
    seed: int = 0


def train(
    names: Sequence[WorkloadName], settings: RateTraining, told: Callable[[str], None] = lambda line: None
) -> ActorCritic:
    """A network trained on random trainings of these workloads."""
    rng = np.random.default_rng(settings.seed)

    def drawn(count: int) -> Parameters:
        return draw_workloads(rng, count, settings.n_workers, names=names)

    network, trainings = fresh_network(rng), Trainings(drawn(settings.environments), rng)
    rows, _ = trainings.window()
    fresh, windows = np.zeros(settings.environments, dtype=bool), 0
    while windows < settings.total_windows:
        done = windows / settings.total_windows
        rollout, sums = Rollout(LEARNER), []
        for _ in range(settings.rollout_windows):
            acted = network.act(rows, explore=True, learn_normaliser=done < LEARNS_NORMALISER)
            trainings.decide(np.where(fresh, FOLLOW, acted.actions))  # of a fresh training nothing has been seen
            rows, rewards = trainings.window()
            ended = trainings.simulator.truncated.copy()
            rollout.add(acted, rewards, ended, np.zeros(len(ended)), ~fresh)
            sums.append(float(rewards[~fresh].mean()))
            if ended.any():
                trainings.replace(ended, drawn(int(ended.sum())))
            fresh = ended
        shown = network.update(rollout.batch(network.values(rows)), LEARNER.learning_rate * max(1 - done, 0.02))
        windows += settings.environments * settings.rollout_windows
        told(f"{windows} reward {np.mean(sums):.4f} entropy {shown['entropy']:.3f} kl {shown['approx_kl']:.4f}")
    return network
