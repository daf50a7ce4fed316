"""accelerate: two workers come to the weights of one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.forked import ForkServer

pytest.importorskip("accelerate", reason="the extra `accelerate` is not installed")

PLANS = [[1, [8, 24]], [4, [28, 4]], [9, [0, 32]]]  # B stays


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer("dynamix_ps.integrations.accelerate,torch._dynamo") as running:
        yield running


@pytest.fixture
def train(server: ForkServer, tmp_path: Path) -> Any:
    """Returns the results of the workers, which have all ended well."""
    numbers = iter(range(10))

    def train(sizes: tuple[int, ...] = (24, 8), **job: Any) -> list[dict[str, Any]]:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        workers = server.run("tests.unit.integrations.cases:in_accelerate", job, folder, sizes, mode="observe")
        assert [worker.code for worker in workers] == [0] * len(sizes), workers[0].output
        return [worker.result | {"folder": folder} for worker in workers]

    return train


@pytest.mark.parametrize("accumulated", [1, 3])
def test_two_workers_are_one_process(train, accumulated):
    two, (one,) = train(plans=PLANS, accumulated=accumulated), train((32,), accumulated=accumulated)
    assert two[0]["weights"] == two[1]["weights"]
    assert two[0]["weights"] == pytest.approx(one["weights"], abs=1e-5)
    assert two[0]["steps"] == two[1]["steps"] == one["steps"]
    assert two[0]["accuracy"] == pytest.approx(one["accuracy"])


def test_evaluations_are_shared_and_every_sample_counts_once(train):
    two = train(epochs=1)
    assert [worker["counted"] for worker in two] == [250, 250]
    assert two[0]["accuracy"] == two[1]["accuracy"]


def test_workers_know_each_other(train):
    two = train(epochs=1)
    assert [worker["is_main"] for worker in two] == [True, False]
    assert [worker["gathered"] for worker in two] == [[0, 0, 1]] * 2  # of different lengths
    assert [worker["mean"] for worker in two] == [0.5] * 2


def test_a_state_in_mid_pass_goes_on_where_it_was(train):
    whole = train(plans=PLANS[:2], save_after=10)
    state = str(whole[0]["folder"] / "state")
    rest = train(plans=PLANS[:2], state=state, epochs=2)
    assert rest[0]["weights"] == pytest.approx(whole[0]["weights"], abs=1e-6)
    assert len(rest[0]["seen"]) == whole[0]["steps"] - 10
