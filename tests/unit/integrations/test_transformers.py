"""The Trainer of transformers: two workers come to the weights of one process."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.integrations.conftest import Train

pytest.importorskip("transformers", reason="the extra `transformers` is not installed")

PLANS = [[1, [4, 12]], [4, [14, 2]]]  # B stays
GROWING = [[2, [12, 20]], [5, [5, 6]]]
HUGE = [[1, [60, 60]]]  # a pass is one step


@pytest.fixture(scope="module")
def two(train: Train) -> list[dict[str, Any]]:
    return train("in_transformers", (12, 4), {"plans": PLANS, "arguments": {"save_strategy": "epoch"}})


@pytest.fixture(scope="module")
def one(train: Train) -> dict[str, Any]:
    (only,) = train("in_transformers", (16,), {})
    return only


def test_two_workers_are_one_process(two, one):
    assert two[0]["weights"] == two[1]["weights"]
    assert two[0]["weights"] == pytest.approx(one["weights"], abs=1e-4)
    assert two[0]["steps"] == two[1]["steps"] == one["steps"]
    assert two[0]["rates"] == pytest.approx(one["rates"])


def test_a_checkpoint_goes_on_where_it_was(train, two):
    kept = next(folder for folder in two[0]["kept"] if folder.endswith("checkpoint-8"))
    job = {"plans": PLANS, "checkpoint": kept, "arguments": {"eval_strategy": "no"}}
    rest = train("in_transformers", (12, 4), job)
    assert rest[0]["weights"] == pytest.approx(two[0]["weights"], abs=1e-5)
    assert rest[0]["steps"] == two[0]["steps"]


def test_passes_end_where_the_data_end_and_the_schedule_with_them(train, one):
    growing = train("in_transformers", (12, 4), {"plans": GROWING})
    assert growing[0]["steps"] > one["steps"]
    assert growing[0]["evaluated"] == one["evaluated"] == [1.0, 2.0]  # passes
    assert growing[0]["rates"][-1] < 0.1 * growing[0]["rates"][0]
    assert growing[0]["rates"] == sorted(growing[0]["rates"], reverse=True)


@pytest.mark.slow
def test_a_number_of_steps_is_a_number_of_steps_however_many_passes_that_are(train):
    job = {"plans": HUGE, "arguments": {"max_steps": 12, "eval_strategy": "no"}}
    assert train("in_transformers", (12, 4), job)[0]["steps"] == 12  # two passes at first


def test_what_cannot_be_right_is_refused(train):
    cases = [
        ({"gradient_accumulation_steps": 2}, "has no place here"),
        ({"auto_find_batch_size": True}, "has no place here"),
        ({"num_train_epochs": 1.5}, "say a whole number"),
    ]
    (said,) = train("refused_in_transformers", (16,), [{"arguments": arguments} for arguments, _ in cases])
    for sentence, (_, part) in zip(said, cases, strict=True):
        assert part in sentence
