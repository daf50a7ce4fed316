from __future__ import annotations

import numpy as np

from dynamix_ps.policy.ppo.gae import advantages
from dynamix_ps.policy.ppo.rollout import Outcome, Step, to_batch


def column(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)[:, None]


def test_hand_computed_table() -> None:
    # gamma = 0.5, lambda = 0.5; d = r + 0.5 V' - V
    #   t   r   V   V'   d                    A
    #   2   3   1   4    3 + 2   - 1 = 4      4
    #   1   0   2   1    0 + 0.5 - 2 = -1.5   -1.5 + 0.25 * 4 = -0.5
    #   0   1   1   2    1 + 1   - 1 = 1      1 + 0.25 * -0.5 = 0.875
    result = advantages(column(1, 0, 3), column(1, 2, 1), column(2, 1, 4), np.ones((3, 1), bool), 0.5, 0.5)
    np.testing.assert_allclose(result[:, 0], [0.875, -0.5, 4])


def test_a_gap_is_a_truncation() -> None:
    linked = np.array([[True], [False], [True]])
    result = advantages(column(1, 0, 3), column(1, 2, 1), column(2, 1, 4), linked, 0.5, 0.5)
    np.testing.assert_allclose(result[:, 0], [1 + 0.25 * -1.5, -1.5, 4])


def test_workers_do_not_mix() -> None:
    linked = np.array([[True, False], [True, True]])
    rewards = np.array([[1.0, 1.0], [2.0, 2.0]])
    zeros = np.zeros((2, 2))
    result = advantages(rewards, zeros, zeros, linked, 1.0, 1.0)
    np.testing.assert_allclose(result, [[3, 1], [2, 2]])


def outcome(number: int, present: list[bool], reward: float) -> Outcome:
    step = Step(
        number=number,
        rows=np.full((2, 3), number, dtype=np.float32),
        actions=np.array([0, 1]),
        log_probs=np.zeros(2, dtype=np.float32),
        values=np.zeros(2, dtype=np.float32),
        present=np.array(present),
    )
    return Outcome(step, np.full(2, reward), np.zeros(2, dtype=np.float32), np.array(present))


def test_batch_leaves_out_absent_workers_and_cuts_at_missing_decisions() -> None:
    batch = to_batch(
        [outcome(1, [True, True], 1.0), outcome(2, [True, False], 2.0), outcome(4, [True, True], 8.0)], 1.0, 1.0
    )
    assert len(batch) == 5
    np.testing.assert_allclose(batch.returns, [1 + 2, 1, 2, 8, 8])
    assert abs(batch.advantages.mean()) < 1e-6
    assert abs(batch.advantages.std() - 1) < 1e-5


def test_a_single_row_keeps_its_advantage() -> None:
    batch = to_batch([outcome(1, [True, False], 3.0)], 1.0, 1.0)
    np.testing.assert_allclose(batch.advantages, [3.0])
