"""Named means over a data set, from the shares of all workers."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest

from dynamix_ps.errors import TrainingError
from worker_hooks.loading.data_source import DataSetSource
from worker_hooks.loading.evaluation import Share, directions, evaluate_share, in_form_of, means, packed, present

NUMBERS = np.arange(10.0)


def fetch(dataset: Any, rows: Any) -> Any:
    return (dataset[rows if len(rows) else [0]],)


def evaluate(score: Any, shares: tuple[int, ...] = (3, 2), data: Any = NUMBERS, fetch: Any = fetch) -> list[Any]:
    """What every worker gets."""
    source = DataSetSource(data, fetch, 0)
    parts = [
        evaluate_share(*source.part(shares, range(rank, rank + 1), 4), score, float) for rank in range(len(shares))
    ]
    total = sum(packed(part, rank, len(shares)) for rank, part in enumerate(parts))
    return [in_form_of(part.scores, means(total, part, len(shares))) for part in parts]


Errors = namedtuple("Errors", "mae mse")


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (lambda x: {"mae": x.sum(), "mse": (x**2).sum()}, {"mae": 4.5, "mse": 28.5}),
        (lambda x: (x.sum(), (x**2).sum()), (4.5, 28.5)),
        (lambda x: Errors(x.sum(), (x**2).sum()), Errors(4.5, 28.5)),
        (lambda x: x.sum(), 4.5),
    ],
)
@pytest.mark.parametrize("shares", [(1,), (3, 2), (10, 1, 0), (0, 5)])
def test_means_have_the_form_of_the_scores_on_every_worker(score, expected, shares):
    found = evaluate(score, shares)
    assert found == [expected] * len(shares)
    assert {type(one) for one in found} == {type(expected)}


@pytest.mark.parametrize(
    ("batch", "score"),
    [
        ((1.0, 2.0), lambda a, b: a + b),
        ([1.0, 2.0], lambda a, b: a + b),
        ({"a": 1.0, "b": 2.0}, lambda b, a: a + b),
        ({"a": 1.0, "b": 2.0}, lambda **named: sum(named.values())),
        ({1: 1.0, 2: 2.0}, lambda batch: sum(batch.values())),
        (3.0, lambda batch: batch),
        (["one", "two"], lambda batch: 3.0 * (batch == ["one", "two"])),
    ],
)
def test_every_structure_of_batches_reaches_the_score_function(batch, score):
    assert evaluate(score, (1,), np.zeros(1), fetch=lambda dataset, rows: batch) == [3.0]


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ({"mae": np.ones(4)}, r"ndarray of shape \(4,\) as 'mae', expected one number: the sum"),
        ({"mae": None}, "NoneType as 'mae'"),
        ({1: 0.0}, "dict with the keys 1"),
        ({}, "returned 0 values"),
        (None, "NoneType as 'value'"),
        ((0.0,) * 65, "65 values, expected 1 to 64"),
    ],
)
def test_what_is_not_a_sum_is_named(scores, message):
    with pytest.raises(TrainingError, match=message):
        evaluate(lambda x: scores)


def test_other_names_for_another_batch_are_refused():
    with pytest.raises(TrainingError, match="returned 'late' after 'early'"):
        evaluate(lambda x: {"early" if x[0] == 0 else "late": 0.0}, (1,))


def test_workers_that_disagree_all_get_the_same_error():
    parts = [Share(10, 5, {"mae": 1.0}, None), Share(10, 5, {"mse": 1.0}, None)]
    total = sum(packed(part, rank, 2) for rank, part in enumerate(parts))
    for part in parts:
        with pytest.raises(TrainingError, match="other names on worker 1 than on worker 0"):
            means(total, part, 2)
    parts = [Share(10, 5, {"mae": 1.0}, None), Share(12, 5, {"mae": 1.0}, None)]
    total = sum(packed(part, rank, 2) for rank, part in enumerate(parts))
    for part in parts:
        with pytest.raises(TrainingError, match="10 samples on worker 0, 12 samples on worker 1"):
            means(total, part, 2)


def test_a_lost_worker_is_not_taken_for_one_that_differs():
    parts = {0: Share(10, 5, {"mae": 10.0}, None), 2: Share(10, 3, {"mae": 6.0}, None)}
    total = sum(packed(part, rank, 3) for rank, part in parts.items())
    assert present(total, 3) == [0, 2]
    assert means(total, parts[0], 3) == {"mae": 2.0}


def test_directions_are_declared_or_well_known():
    names = ["accuracy", "test_loss", "wer", "bleu", "value"]
    assert directions(names, higher=("bleu",), lower="wer") == {
        "accuracy": True,
        "test_loss": False,
        "wer": False,
        "bleu": True,
    }
    assert directions(["loss"], higher="loss") == {"loss": True}, "what is declared counts"
    with pytest.raises(TrainingError, match="declared for 'cer', but score\\(\\) returns 'wer'"):
        directions(["wer"], lower=("cer",))
    with pytest.raises(TrainingError, match="'wer' is declared with higher_is_better and with lower_is_better"):
        directions(["wer"], higher="wer", lower="wer")
