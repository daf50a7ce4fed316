"""The example scripts as one ordinary process."""

import os
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest

from dynamix_ps.config.schema import Cluster, Config, WorkerSection
from dynamix_ps.report.summary import Outcome, write_summary
from dynamix_ps.run_record.run_folder import RunFolder
from tests.integration.training.small_training import NEEDS_MXNET

UNREACHABLE = "http://127.0.0.1:9"


def train(folder: RunFolder, cache: Path, *arguments: str, script: str = "train") -> subprocess.CompletedProcess[str]:
    own = {"DYNAMIX_RUN_DIR": str(folder.path), "DYNAMIX_CACHE": str(cache), "DYNAMIX_DATA": ""}
    no_network = {"http_proxy": UNREACHABLE, "https_proxy": UNREACHABLE, "no_proxy": ""}
    without = {name: value for name, value in os.environ.items() if not name.startswith(("DYNAMIX_", "DMLC_"))}
    command = [sys.executable, "-m", f"benchmarks.workloads.{script}", *arguments]
    environment = without | own | no_network
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "runs", "script", datetime.now(timezone.utc), "t1")


def summarise(folder: RunFolder) -> dict[str, object]:
    config = Config(comm="local", mode="off", cluster=Cluster(workers=(WorkerSection(),)), target_accuracy=0.5)
    return write_summary(folder, config, Outcome(0, "ok", "none"))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("script", ["train", pytest.param("train_mxnet", marks=NEEDS_MXNET)])
def test_learns_digits_and_records_it(folder: RunFolder, tmp_path: Path, script: str) -> None:
    arguments = "--data", "digits", "--model", "mlp", "--epochs", "8", "--eval-every", "50"
    done = train(folder, tmp_path, *arguments, script=script)
    assert done.returncode == 0, done.stderr
    assert "scikit-learn's digits" in done.stderr
    summary = summarise(folder)
    assert summary["comm"] == "local"
    assert isinstance(summary["final_accuracy"], float) and summary["final_accuracy"] > 0.85
    assert f"test accuracy {summary['final_accuracy']:.4f}" in done.stdout
    assert summary["samples"] == 8 * 1437
    assert summary["time_to_accuracy_s"] is not None
    assert summary["degraded"] == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("script", ["train", pytest.param("train_mxnet", marks=NEEDS_MXNET)])
def test_goes_on_until_the_target_is_reached(folder: RunFolder, tmp_path: Path, script: str) -> None:
    arguments = "--data", "digits", "--model", "mlp", "--epochs", "1", "--most-epochs", "60"
    arguments += "--target", "0.9", "--eval-samples", "300"
    done = train(folder, tmp_path, *arguments, script=script)
    assert done.returncode == 0, done.stderr
    summary = summarise(folder)
    assert isinstance(summary["final_accuracy"], float) and summary["final_accuracy"] > 0.8
    assert isinstance(summary["samples"], int) and 1437 < summary["samples"] < 60 * 1437


@pytest.mark.timeout(120)
def test_stand_in_data_is_in_the_summary(folder: RunFolder, tmp_path: Path) -> None:
    done = train(folder, tmp_path, "--data", "fashion-mnist", "--model", "mlp", "--epochs", "1")
    assert done.returncode == 0, done.stderr
    assert "degraded: data: Fashion-MNIST was not found" in done.stderr
    (line,) = summarise(folder)["degraded"]  # type: ignore[misc]
    assert line.startswith("data (worker-0): Fashion-MNIST was not found") and "digits instead" in line


@pytest.mark.timeout(120)
def test_damaged_data_ends_with_one_line(folder: RunFolder, tmp_path: Path) -> None:
    damaged = tmp_path / "fashion_mnist.npz"
    damaged.write_bytes(b"PK\x03\x04 and no more")
    done = train(folder, tmp_path, "--path", str(damaged))
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith(f"error: data file {damaged}")]


@pytest.mark.timeout(120)
def test_model_that_does_not_fit_ends_with_one_line(folder: RunFolder, tmp_path: Path) -> None:
    done = train(folder, tmp_path, "--data", "digits", "--model", "cifar-cnn")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: model 'cifar-cnn' takes inputs of 3x32x32, got 1x28x28")
