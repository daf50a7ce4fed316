"""The Trainer of transformers: two workers come to the weights of one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.forked import ForkServer

pytest.importorskip("transformers", reason="the extra `transformers` is not installed")

CALL = "tests.unit.integrations.cases:in_transformers"
PLANS = [[1, [4, 12]], [4, [14, 2]]]  # B stays
GROWING = [[2, [12, 20]], [5, [5, 6]]]


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer("dynamix_ps.integrations.transformers,transformers.models.gpt2,torch._dynamo") as running:
        yield running


@pytest.fixture
def train(server: ForkServer, tmp_path: Path) -> Any:
    """Returns the results of the workers, which have all ended well."""
    numbers = iter(range(10))

    def train(sizes: tuple[int, ...] = (12, 4), **job: Any) -> list[dict[str, Any]]:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        workers = server.run(CALL, job, folder, sizes, mode="observe")
        assert [worker.code for worker in workers] == [0] * len(sizes), workers[0].output
        return [worker.result for worker in workers]

    return train


def test_two_workers_are_one_process(train):
    two, (one,) = train(plans=PLANS), train((16,))
    assert two[0]["weights"] == two[1]["weights"]
    assert two[0]["weights"] == pytest.approx(one["weights"], abs=1e-4)
    assert two[0]["steps"] == two[1]["steps"] == one["steps"]
    assert two[0]["rates"] == pytest.approx(one["rates"])


def test_passes_end_where_the_data_end_and_the_schedule_with_them(train):
    steady, growing = train(), train(plans=GROWING)
    assert growing[0]["steps"] > steady[0]["steps"]
    assert len(growing[0]["evaluated"]) == 3
    assert growing[0]["rates"][-1] < 0.1 * growing[0]["rates"][0]
    assert growing[0]["rates"] == sorted(growing[0]["rates"], reverse=True)


def test_a_checkpoint_goes_on_where_it_was(train):
    whole = train(plans=PLANS)
    kept = next(folder for folder in whole[0]["kept"] if folder.endswith("checkpoint-8"))
    rest = train(plans=PLANS, checkpoint=kept)
    assert rest[0]["weights"] == pytest.approx(whole[0]["weights"], abs=1e-5)
    assert rest[0]["steps"] == whole[0]["steps"]


def test_a_number_of_steps_is_a_number_of_steps(train):
    assert train(plans=GROWING, arguments={"max_steps": 5})[0]["steps"] == 5


@pytest.mark.parametrize("arguments", [{"gradient_accumulation_steps": 2}, {"auto_find_batch_size": True}])
def test_what_cannot_be_right_is_refused(server, tmp_path, arguments):
    workers = server.run(CALL, {"arguments": arguments}, tmp_path, (12, 4), mode="observe")
    assert all(worker.code for worker in workers)
    assert all("has no place here" in worker.output.strip().splitlines()[-1] for worker in workers)
