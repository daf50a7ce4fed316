"""Two workers in MXNet on BytePS: one process in plain MXNet, or one error on all workers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dynamix_ps.errors import TrainingError
from tests.all_forked_cluster import AllForkedCluster
from tests.forked import write_cluster_file
from tests.integration.training.small_training import NEEDS_MXNET, SAMPLES

SCRIPT = "from tests.cases.scripts.mxnet_scripts import main; main()"
REFUSED = {
    "perturbed_weights": "the weights differ between workers before the step of iteration",
    "loops_of_different_length": "different places of the script: .*worker 1 calls run.close",
}

pytestmark = NEEDS_MXNET


def cluster(folder: Path, settings: dict[str, Any] | None = None, **variables: str) -> AllForkedCluster:
    file = write_cluster_file(folder, (24, 8), comm="byteps", **(settings or {}))
    return AllForkedCluster(SCRIPT, frameworks=["mxnet"] * 2, env={"DYNAMIX_CONFIG": str(file), **variables})


MICRO_BATCHES = {"cluster": {"workers": ({"batch": 24, "min": 0, "at_once": 7}, {"batch": 8, "min": 0})}}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("settings", [{}, MICRO_BATCHES], ids=["whole", "micro-batches"])
def test_two_workers_are_one_process(settings: dict[str, Any], tmp_path: Path) -> None:
    with cluster(tmp_path, settings) as running:
        results: list[dict[str, Any]] = running.results(timeout_s=90)
    for name, first in results[0].items():
        assert first["ours"] == results[1][name]["ours"], name
        assert first["ours"] == pytest.approx(first["plain"], rel=1e-6, abs=1e-9), name
        assert first["samples"] == 2 * SAMPLES * (3 if name == "folds" else 1)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", REFUSED)
def test_all_workers_stop_with_one_error(name: str, tmp_path: Path) -> None:
    with cluster(tmp_path, TEST_REFUSED=name) as running:
        ended = [running.wait(f"worker-{rank}", timeout_s=90) for rank in range(2)]
    errors = {line for one in ended for line in one.output.splitlines() if line.startswith("error: ")}
    assert [one.returncode for one in ended] == [TrainingError.exit_code] * 2, ended
    assert len(errors) == 1 and re.search(REFUSED[name], errors.pop())
    assert not any("it went on" in one.output for one in ended)
