"""What a cell keeps of its run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.suite.result_of_run import _curve
from benchmarks.suite.workloads import load_workload
from dynamix_ps.run_record.run_folder import RunFolder
from tests.unit.synthetic_run import evaluation


@pytest.mark.parametrize(("workload", "accuracy"), [("fashion-cnn", 0.7), ("fashion-cnn-averaged", 0.8)])
def test_the_curve_is_of_what_the_workload_judges(workload: str, accuracy: float, tmp_path: Path) -> None:
    own = evaluation(5, 0.7, trained_s=4.0, trained_samples=9000)
    averaged = own | {"values": {"averaged_accuracy": 0.8, "averaged_loss": 0.2}}
    (tmp_path / "workers").mkdir()
    folder = RunFolder(tmp_path)
    folder.worker_file(0).write_text("".join(json.dumps(line) + "\n" for line in (own, averaged)))
    (point,) = _curve(folder, load_workload(workload))
    assert (point.accuracy, point.loss, point.time_s) == (accuracy, pytest.approx(1 - accuracy), 4.0)
