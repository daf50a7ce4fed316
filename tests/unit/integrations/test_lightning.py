"""Lightning under the strategy: two workers come to the weights of one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dynamix_ps.errors import TrainingError
from tests.forked import ForkServer, Worker

pytest.importorskip("lightning", reason="the extra `lightning` is not installed")

CALL = "tests.unit.integrations.cases:in_lightning"
PLANS = [[1, [8, 24]], [4, [28, 4]], [9, [0, 32]]]  # B stays
GROWING = [[2, [24, 40]], [5, [10, 12]]]


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer("dynamix_ps.integrations.lightning,torch._dynamo") as running:
        yield running


@pytest.fixture
def train(server: ForkServer, tmp_path: Path) -> Any:
    """Returns the results of the workers, which have all ended well."""
    numbers = iter(range(10))

    def train(sizes: tuple[int, ...] = (24, 8), **job: Any) -> list[dict[str, Any]]:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        workers = server.run(CALL, job, folder, sizes, mode="observe")
        assert [worker.code for worker in workers] == [0] * len(sizes), workers[0].output
        return [worker.result for worker in workers]

    return train


def refusal(server: ForkServer, folder: Path, **job: Any) -> str:
    """What the workers say, which have all stopped with one error."""
    workers: list[Worker] = server.run(CALL, job, folder, mode="observe")
    assert {worker.code for worker in workers} == {TrainingError.exit_code}, workers[0].output
    last = {worker.output.strip().splitlines()[-1] for worker in workers}
    assert len(last) == 1
    return last.pop()


@pytest.mark.parametrize(
    "job",
    [{}, {"trainer": {"accumulate_grad_batches": 2}}, {"trainer": {"gradient_clip_val": 0.1}}, {"manual": True}],
    ids=["automatic", "accumulated", "clipped", "manual"],
)
def test_two_workers_are_one_process(train, job):
    two, (one,) = train(plans=PLANS, **job), train((32,), **job)
    assert two[0]["weights"] == two[1]["weights"]
    assert two[0]["weights"] == pytest.approx(one["weights"], abs=1e-5)
    for name in ("steps", "epochs", "validated"):
        assert two[0][name] == two[1][name] == one[name]
    assert two[0]["accuracy"] == pytest.approx(one["accuracy"])


def test_metrics_of_all_workers_are_weighted_by_their_batches(train):
    two, (one,) = train(plans=PLANS[:2]), train((32,))
    assert two[0]["loss"] == two[1]["loss"] == pytest.approx(one["loss"], abs=1e-5)
    assert two[0]["mean_loss"] == two[1]["mean_loss"] == pytest.approx(one["loss"], abs=1e-5)  # of torchmetrics


def test_a_pass_ends_where_the_data_end_however_many_batches_that_are(train):
    two = train(plans=GROWING)
    taken = [sum(pair) for pair in zip(two[0]["seen"], two[1]["seen"], strict=True)]
    assert sum(taken) == 3 * 250
    assert [sum(taken[:step]) for step in two[0]["validated"][1:]] == [250, 500, 750]  # the first is the sanity check
    assert two[0]["steps"] == len(taken) and two[0]["epochs"] == 3


def test_a_checkpoint_in_mid_pass_goes_on_where_it_was(train):
    whole = train(plans=PLANS[:2])
    kept = next(file for file in whole[0]["kept"] if "step=12" in file)  # 8 steps are a pass
    rest = train(plans=PLANS[:2], checkpoint=kept)
    assert rest[0]["weights"] == pytest.approx(whole[0]["weights"], abs=1e-6)
    assert rest[0]["steps"] == whole[0]["steps"]
    assert len(rest[0]["seen"]) == whole[0]["steps"] - 12


def test_a_loss_with_a_weight_is_a_mean_over_the_weights_of_all(train):
    two, (one,) = train(plans=PLANS, weighted=True), train((32,))
    assert two[0]["weights"] == pytest.approx(one["weights"], abs=1e-5)


def test_a_few_steps_are_enough(train):
    assert train(trainer={"max_epochs": -1, "max_steps": 5, "limit_val_batches": 0})[0]["steps"] == 5


@pytest.mark.parametrize(
    ("trainer", "said"),
    [
        ({"limit_train_batches": 2}, "let every pass end"),
        ({"limit_train_batches": 0.5}, "a loader of fewer samples"),
        ({"val_check_interval": 0.5}, "as an integer"),
        ({"reload_dataloaders_every_n_epochs": 1}, "a second loader for training"),
        ({"devices": 2}, "a worker trains on one"),
    ],
)
def test_what_cannot_be_right_is_refused(server, tmp_path, trainer, said):
    assert said in refusal(server, tmp_path, trainer=trainer)
