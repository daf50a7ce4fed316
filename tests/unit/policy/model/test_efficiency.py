from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps.policy.base import LR_RULES
from dynamix_ps.policy.model.efficiency import finishing, step_progress
from tests.unit.policy.learned.test_action_spaces import window


def progress(rule: str, batch: float, noise: float, reference: float = 100, tuning: float = 1.0) -> float:
    found = step_progress(
        np.array(LR_RULES.index(rule), dtype=np.int8), tuning, np.array(reference), np.array(noise), np.array(batch)
    )
    return float(found)


def test_by_hand() -> None:
    # at the reference batch every rule is alike: h (2 - h) / (1 + N / B) with h = tuning
    for rule in LR_RULES:
        assert progress(rule, 100, noise=300) == pytest.approx(1 / 4)
        assert progress(rule, 100, noise=300, tuning=0.7) == pytest.approx(0.7 * 1.3 / 4)
    # four times the batch: 1 + N / B is 1.75 in place of 4, so an unscaled step has h = 1.75 / 4
    h = 1.75 / 4
    assert progress("none", 400, noise=300) == pytest.approx(h * (2 - h) / 1.75)
    assert progress("sqrt", 400, noise=300) == pytest.approx(2 * h * (2 - 2 * h) / 1.75)
    assert progress("linear", 400, noise=300) == pytest.approx(4 * h * (2 - 4 * h) / 1.75)
    assert progress("adascale", 400, noise=300) == pytest.approx(1 / 1.75)


@given(st.floats(1, 1e6), st.floats(0, 1e6), st.floats(0.1, 1.9))
def test_adascale_is_the_efficiency_of_pollux_up_to_a_constant(batch: float, noise: float, tuning: float) -> None:
    expected = tuning * (2 - tuning) / (1 + noise / batch)
    assert progress("adascale", batch, noise, tuning=tuning) == pytest.approx(expected)


def test_a_linear_rule_diverges_where_noise_no_longer_explains_it() -> None:
    small_noise = [progress("linear", batch, noise=50) for batch in (100, 150, 400, 1e4)]
    assert small_noise[0] > 0 > small_noise[2]
    # a step is cut off at h = 3
    assert small_noise[3] == pytest.approx(3 * (2 - 3) / (1 + 50 / 1e4))
    # with much noise twice the batch at twice the learning rate is close to twice the progress
    assert progress("linear", 200, noise=1e5) == pytest.approx(2 * progress("linear", 100, noise=1e5), rel=0.01)
    assert progress("none", 1e6, noise=50) > 0


def test_any_shape_equals_one_by_one() -> None:
    rng = np.random.default_rng(0)
    rule = rng.integers(len(LR_RULES), size=4).astype(np.int8)
    reference, noise = rng.uniform(10, 1000, 4), rng.uniform(1, 1e4, 4)
    batch = rng.uniform(10, 1e4, (3, 4))
    found = step_progress(rule, 0.7, reference, noise, batch)
    for row, column in np.ndindex(3, 4):
        values = float(batch[row, column]), float(noise[column]), float(reference[column])
        one = progress(LR_RULES[rule[column]], *values, 0.7)
        assert found[row, column] == pytest.approx(one)


def ends(rule: str, trained_ratio: float, lr_ratio: float) -> bool:
    now = dataclasses.replace(
        window(64, 64),
        lr_rule=np.array(LR_RULES.index(rule), dtype=np.int8),
        trained_ratio=np.array(trained_ratio),
        lr_ratio=np.array(lr_ratio),
    )
    return bool(finishing(now))


@pytest.mark.parametrize(
    ("trained_ratio", "lr_ratio", "expected"),
    [(0.74, 1.0, False), (0.75, 1.0, True), (1.0, 1.0, True), (0.9, 0.5, False), (math.nan, 1.0, False),
     (0.9, math.nan, False)],
)  # fmt: skip
def test_training_ends_in_its_last_quarter_if_the_script_keeps_its_learning_rate(
    trained_ratio: float, lr_ratio: float, expected: bool
) -> None:
    assert ends("sqrt", trained_ratio, lr_ratio) == expected


def test_it_does_not_end_so_where_the_learning_rate_follows_the_batch_in_proportion() -> None:
    """The noise, lr / B, would stay the same."""
    found = {rule: ends(rule, 0.9, 1.0) for rule in LR_RULES}
    assert found == {"none": True, "linear": False, "sqrt": True, "adascale": True}
