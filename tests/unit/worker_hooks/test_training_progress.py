"""The progress of training, from what the script reports."""

from __future__ import annotations

import math

import pytest

from worker_hooks.observe.training_progress import TrainingProgress


@pytest.mark.parametrize(
    ("epochs", "iterations", "ratio"),
    [(3, None, 0.5), (None, 60, 0.25), (3, 20, 0.75), (1, None, 1.0)],
)
def test_part_of_what_was_asked_for_by_the_limit_that_is_nearer(
    epochs: int | None, iterations: int | None, ratio: float
) -> None:
    progress = TrainingProgress()
    progress.ask(epochs, iterations)
    assert progress.trained_ratio(1.5, 15) == ratio


def test_who_asks_for_more_has_shown_that_the_end_was_none() -> None:
    progress = TrainingProgress()
    progress.ask(1, None)
    progress.ask(2, None)
    assert math.isnan(progress.trained_ratio(1.5, 15))


def test_an_end_that_may_be_none_is_shown_and_not_relied_on() -> None:
    progress = TrainingProgress()
    progress.ask(1, None, may_go_on=True)
    assert progress.trained_ratio(0.5, 15) == 0.5
    assert math.isnan(progress.ratio_to_rely_on(0.5, 15))
    progress = TrainingProgress()
    progress.ask(1, None)
    assert progress.ratio_to_rely_on(0.5, 15) == 0.5


def test_a_learning_rate_counts_in_units_of_its_largest_also_after_a_resume() -> None:
    progress = TrainingProgress()
    assert [progress.lr_ratio(lr) for lr in (0.1, 0.4, 0.2, -1.0)] == [1.0, 1.0, 0.5, 0.0]
    assert TrainingProgress(progress.largest_lr).lr_ratio(0.1) == 0.25


@pytest.mark.parametrize("lr", [0.0, math.inf, math.nan])
def test_a_learning_rate_that_is_none_is_unknown(lr: float) -> None:
    assert math.isnan(TrainingProgress().lr_ratio(lr))
