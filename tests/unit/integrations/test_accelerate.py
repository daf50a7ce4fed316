"""accelerate: two workers come to the weights of one process."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.integrations.cases import ROWS
from tests.unit.integrations.conftest import Train

pytest.importorskip("accelerate", reason="the extra `accelerate` is not installed")

PLANS = [[1, [8, 24]], [4, [28, 4]], [9, [0, 32]]]  # B stays
SAVED = 10  # steps; 8 are a pass


@pytest.fixture(scope="module")
def two(train: Train) -> list[dict[str, Any]]:
    return train("in_accelerate", (24, 8), {"plans": PLANS, "save_after": SAVED})


@pytest.fixture(scope="module")
def one(train: Train) -> dict[str, Any]:
    (only,) = train("in_accelerate", (32,), {})
    return only


def test_two_workers_are_one_process(two, one):
    assert two[0]["weights"] == two[1]["weights"]
    assert two[0]["weights"] == pytest.approx(one["weights"], abs=1e-5)
    assert two[0]["steps"] == two[1]["steps"] == one["steps"]


def test_sums_of_several_batches_are_those_of_one_process(train):
    job = {"accumulated": 3, "epochs": 2}
    two, (one,) = train("in_accelerate", (24, 8), job | {"plans": PLANS}), train("in_accelerate", (32,), job)
    assert two[0]["weights"] == two[1]["weights"]
    assert two[0]["weights"] == pytest.approx(one["weights"], abs=1e-5)
    assert two[0]["steps"] == two[1]["steps"] == one["steps"]


def test_a_shuffled_evaluation_has_every_sample_once(two, one):
    for worker in two:
        assert sorted(worker["evaluated"]) == sorted(one["evaluated"])
        assert worker["accuracy"] == pytest.approx(one["accuracy"])
        assert worker["evaluations"] == [2, 2]  # 250 samples, a hundred at once in each of two workers
    assert len(one["evaluated"]) == ROWS


def test_workers_know_each_other(two):
    assert [worker["is_main"] for worker in two] == [True, False]
    assert [worker["late"] for worker in two] == [False, True]  # inside of main_process_first()
    assert [worker["gathered"] for worker in two] == [[0, 0, 1]] * 2  # of different lengths
    assert [worker["mean"] for worker in two] == [0.5] * 2


def test_a_state_in_mid_pass_goes_on_where_it_was(train, two):
    rest = train("in_accelerate", (24, 8), {"plans": PLANS, "state": two[0]["state"], "epochs": 2})
    assert rest[0]["weights"] == pytest.approx(two[0]["weights"], abs=1e-6)
    assert len(rest[0]["seen"]) == two[0]["steps"] - SAVED


def test_what_cannot_be_right_is_refused(train):
    said = train("refused_in_accelerate", (24, 8))
    assert said[0] == said[1]
    parts = ("whose size the plan says", "only tensors travel", "of which each takes a part", "Anyhow", "is a stream")
    for sentence, part in zip(said[0], parts, strict=True):
        assert part in sentence
