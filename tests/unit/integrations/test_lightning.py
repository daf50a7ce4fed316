"""Lightning under the strategy: two workers come to the weights of one process."""

from __future__ import annotations

from typing import Any

import pytest

from dynamix_ps.errors import TrainingError
from tests.unit.integrations.conftest import Train

pytest.importorskip("lightning", reason="the extra `lightning` is not installed")

PLANS = [[1, [8, 24]], [4, [28, 4]]]  # B stays
EMPTY = [*PLANS, [9, [0, 32]]]
GROWING = [[2, [24, 40]], [5, [10, 12]]]


@pytest.fixture(scope="module")
def two(train: Train) -> list[dict[str, Any]]:
    return train("in_lightning", (24, 8), {"plans": PLANS})


@pytest.fixture(scope="module")
def one(train: Train) -> dict[str, Any]:
    (only,) = train("in_lightning", (32,), {})
    return only


def test_two_workers_are_one_process(two, one):
    assert two[0]["weights"] == two[1]["weights"]
    assert two[0]["weights"] == pytest.approx(one["weights"], abs=1e-5)
    for name in ("steps", "epochs", "validated"):
        assert two[0][name] == two[1][name] == one[name]
    assert two[0]["accuracy"] == pytest.approx(one["accuracy"])


def test_metrics_of_all_workers_are_weighted_by_their_batches(two, one):
    assert two[0]["loss"] == two[1]["loss"] == pytest.approx(one["loss"], abs=1e-5)
    assert two[0]["mean_loss"] == two[1]["mean_loss"] == pytest.approx(one["loss"], abs=1e-5)  # of torchmetrics


def test_averages_of_a_callback_are_the_same_on_all_workers_and_recorded_as_such(train, two):
    averaged = train("in_lightning", (24, 8), {"plans": PLANS, "averaged": True})
    assert averaged[0]["weights"] == averaged[1]["weights"] != two[0]["weights"]
    assert (two[0]["recorded"], averaged[0]["recorded"]) == (["accuracy"], ["averaged_accuracy"])


def test_a_checkpoint_in_mid_pass_goes_on_where_it_was(train, two):
    kept = next(file for file in two[0]["kept"] if "step=12" in file)  # 8 steps are a pass
    rest = train("in_lightning", (24, 8), {"plans": PLANS, "checkpoint": kept})
    assert rest[0]["weights"] == pytest.approx(two[0]["weights"], abs=1e-6)
    assert rest[0]["steps"] == two[0]["steps"]
    assert len(rest[0]["seen"]) == two[0]["steps"] - 12


@pytest.mark.parametrize(
    "job",
    [{"trainer": {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1, "max_epochs": 2}}, {"manual": True}],
    ids=["accumulated-clipped", "manual"],
)
def test_so_they_are_with_an_empty_share(train, job):
    two, (one,) = train("in_lightning", (24, 8), job | {"plans": EMPTY}), train("in_lightning", (32,), job)
    assert two[0]["weights"] == two[1]["weights"]
    assert two[0]["weights"] == pytest.approx(one["weights"], abs=1e-5)
    assert two[0]["steps"] == two[1]["steps"] == one["steps"]


def test_a_loss_with_a_weight_is_a_mean_over_the_weights_of_all(train, one):
    two = train("in_lightning", (24, 8), {"plans": EMPTY, "weighted": True})
    assert two[0]["weights"] == pytest.approx(one["weights"], abs=1e-5)


def test_a_batch_in_micro_batches_is_the_same(train, one):
    two = train("in_lightning", (24, 8), {}, batch={"min": 1, "at_once": 10})
    assert two[0]["weights"] == pytest.approx(one["weights"], abs=1e-5)


def test_a_pass_ends_where_the_data_end_however_many_batches_that_are(train):
    two = train("in_lightning", (24, 8), {"plans": GROWING})
    taken = [sum(pair) for pair in zip(two[0]["seen"], two[1]["seen"], strict=True)]
    assert sum(taken) == 3 * 250
    assert [sum(taken[:step]) for step in two[0]["validated"][1:]] == [250, 500, 750]  # the first is the sanity check
    assert two[0]["steps"] == len(taken) and two[0]["epochs"] == 3


def test_a_few_steps_are_enough(train):
    job = {"trainer": {"max_epochs": -1, "max_steps": 5, "limit_val_batches": 0}}
    assert train("in_lightning", (32,), job)[0]["steps"] == 5


def test_what_cannot_be_right_is_refused(train):
    cases = [
        ({"trainer": {"devices": 2}}, "a worker trains on one"),
        ({"trainer": {"limit_train_batches": 0.5}}, "a loader of fewer samples"),
        ({"trainer": {"val_check_interval": 0.5}}, "as an integer"),
        ({"trainer": {"val_check_interval": "00:00:01:00"}}, "of 60 s"),
        ({"stream": True}, "is a stream"),
        ({"trainer": {"reload_dataloaders_every_n_epochs": 1}}, "a second loader for training"),
    ]
    (said,) = train("refused_in_lightning", (32,), [job for job, _ in cases])
    for sentence, (_, part) in zip(said, cases, strict=True):
        assert part in sentence


def test_all_workers_stop_with_one_error(server, tmp_path):
    job = {"trainer": {"limit_train_batches": 2}}
    workers = server.run("tests.unit.integrations.cases:in_lightning", job, tmp_path, mode="observe")
    assert {worker.code for worker in workers} == {TrainingError.exit_code}, workers[0].output
    (last,) = {worker.output.strip().splitlines()[-1] for worker in workers}
    assert "let every pass end" in last
