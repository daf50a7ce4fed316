"""Collects what the agent did and what came of it, until an update uses it up."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.policy.ppo.gae import advantages


@dataclass(frozen=True, slots=True)
class Step:
    """One decision for all workers: rows are workers."""

    number: int  # of the decision; consecutive numbers follow each other directly
    rows: NDArray[np.float32]  # what the network saw
    actions: NDArray[np.int64]
    log_probs: NDArray[np.floating]  # of the actions, under the policy that took them
    values: NDArray[np.floating]  # V of the state in which it was taken
    present: NDArray[np.bool_]  # the worker reported then


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step led to."""

    step: Step
    rewards: NDArray[np.float64]
    next_values: NDArray[np.floating]  # V of the state it led to
    present: NDArray[np.bool_]  # the worker was there before and after


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows for the update, workers and steps mixed; all of one length."""

    rows: NDArray[np.floating]
    actions: NDArray[np.int64]
    log_probs: NDArray[np.floating]
    advantages: NDArray[np.floating]
    returns: NDArray[np.floating]
    values: NDArray[np.floating]

    def __len__(self) -> int:
        return len(self.actions)

    def take(self, index: NDArray[np.int64]) -> Batch:
        """Some of the rows."""
        return Batch(
            self.rows[index],
            self.actions[index],
            self.log_probs[index],
            self.advantages[index],
            self.returns[index],
            self.values[index],
        )


def to_batch(outcomes: list[Outcome], gamma: float, gae_lambda: float) -> Batch:
    """Advantages over each worker's own sequence of steps, then everything in one batch.

    Advantages are normalised to mean 0 and standard deviation 1 where there are at least two.
    """
    values = np.stack([outcome.step.values for outcome in outcomes]).astype(np.float64)
    present = np.stack([outcome.present for outcome in outcomes])
    linked = np.zeros_like(present)
    for t, (now, after) in enumerate(itertools.pairwise(outcomes)):
        linked[t] = after.present & (after.step.number == now.step.number + 1)
    gains = advantages(
        np.stack([outcome.rewards for outcome in outcomes]),
        values,
        np.stack([outcome.next_values for outcome in outcomes]).astype(np.float64),
        linked,
        gamma,
        gae_lambda,
    )
    returns = gains + values
    chosen = gains[present]
    if len(chosen) > 1:
        chosen = (chosen - chosen.mean()) / (chosen.std() + 1e-8)
    return Batch(
        rows=np.stack([outcome.step.rows for outcome in outcomes])[present],
        actions=np.stack([outcome.step.actions for outcome in outcomes])[present],
        log_probs=np.stack([outcome.step.log_probs for outcome in outcomes])[present],
        advantages=chosen.astype(np.float32),
        returns=returns[present].astype(np.float32),
        values=values[present].astype(np.float32),
    )
