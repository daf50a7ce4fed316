"""What a run records is what the script has seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.forked import ForkServer


def records(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (folder / "run/workers/worker-0.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


@pytest.mark.parametrize("name", ["loss_of_whole_batches", "loss_of_parts", "loss_over_batches"])
def test_the_recorded_loss_is_that_of_the_batches(name: str, server: ForkServer, tmp_path: Path) -> None:
    job = {"name": f"records.{name}", "plans": []}
    workers = server.run("tests.cases.harness:work", job, tmp_path, window=4, mode="observe")
    for worker in workers:
        assert worker.code == 0, worker.output
    true = sum(worker.result["values"] for worker in workers) / 640
    windows = records(tmp_path, "window")
    assert len(windows) >= 2
    recorded = sum(one["global_loss"] * one["iterations"] for one in windows)
    assert recorded / sum(one["iterations"] for one in windows) == pytest.approx(true, rel=0.1)


def test_a_sum_is_recorded_as_a_mean_over_samples(server: ForkServer, tmp_path: Path) -> None:
    """Loss and gradient noise are those of the mean loss, divided by the constant of the script."""
    found = []
    for name in ("noise_of_means", "noise_of_sums"):
        (tmp_path / name).mkdir()
        job = {"name": f"records.{name}", "plans": []}
        workers = server.run("tests.cases.harness:work", job, tmp_path / name, window=4, mode="observe")
        for worker in workers:
            assert worker.code == 0, worker.output
        found.append((workers[0].result["values"], records(tmp_path / name, "window")))
    (means, of_means), (sums, of_sums) = found
    assert [value for one in sums for value in one] == pytest.approx(
        [value for one in means for value in one], rel=1e-6
    )
    pairs = [(one, other) for one in of_means for other in of_sums if place_of(one) == place_of(other)]
    assert pairs
    for one, other in pairs:
        for name, power in (("global_loss", 1), ("loss", 1), ("grad_sq_local", 2), ("grad_sq_global", 2)):
            assert other[name] * 4**power == pytest.approx(one[name], rel=1e-6), name
        for name in ("noise_variance", "noise_signal"):
            assert other[name] * 16 == pytest.approx(one[name], rel=1e-6), name


def place_of(window: dict[str, Any]) -> tuple[int, int]:
    """Its iterations: where a machine seems to have changed, a window is shorter."""
    return window["first_iteration"], window["iterations"]


def test_metrics_have_names_and_a_direction(server: ForkServer, tmp_path: Path) -> None:
    job = {"name": "records.metrics_of_any_batch", "plans": []}
    workers = server.run("tests.cases.harness:work", job, tmp_path)
    for worker in workers:
        assert worker.code == 0, worker.output
        assert worker.result["values"] == pytest.approx([49.5] * 4)
    evaluations = records(tmp_path, "evaluation")
    assert len(evaluations) == 4
    assert all(one["values"] == {"mae": pytest.approx(49.5)} for one in evaluations)
    assert all(one["higher_is_better"] == {"mae": False} for one in evaluations)
    assert not any("accuracy" in one["values"] for one in evaluations)
