"""Scripts of each framework on two uneven workers whose batch sizes adapt."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.launching import cluster_file, dynamix

pytestmark = pytest.mark.timeout(240)
DATA = Path(os.environ.get("DYNAMIX_DATA", "data")).absolute()
UNEVEN = "[{batch: 32}, {batch: 32, speed: 0.5}]"


def launched(framework: str, folder: Path) -> dict[str, Any]:
    """The summary of the script `with_<framework>` on two workers. Skips the test where the extra is not installed."""
    if not find_spec(framework):
        pytest.skip(f"the extra `{framework}` is not installed")
    file = cluster_file(folder, "window: 10\nbatch: {min: 4, max: 96}\npolicy: {name: ppo}\n", UNEVEN, "gloo", "adapt")
    command = ("launch", "-c", str(file), "--", "python", "-m", f"tests.integration.frameworks.with_{framework}")
    process = dynamix(*command, cwd=folder, DYNAMIX_DATA=str(DATA))
    output, _ = process.communicate()
    assert process.returncode == 0, output
    summary: dict[str, Any] = json.loads((folder / "runs" / "latest" / "summary.json").read_text())
    assert summary["plans_applied"] >= 3
    assert summary["degraded"] == []
    return summary


@pytest.mark.skipif(not (DATA / "fashion_mnist.npz").exists(), reason="DYNAMIX_DATA names no folder with Fashion-MNIST")
@pytest.mark.parametrize("framework", ["lightning", "accelerate"])
def test_images_are_learned(framework: str, tmp_path: Path) -> None:
    summary = launched(framework, tmp_path)
    assert summary["final_accuracy"] > 0.85
    assert summary["samples"] == 4 * 12_000
    assert len(summary["evaluations"]) == 4


def test_text_is_learned(tmp_path: Path) -> None:
    summary = launched("transformers", tmp_path)
    assert summary["metrics"]["loss"]["last"] < 2.5  # nats per byte; log(256) = 5.5 if all bytes were alike
    assert len(summary["evaluations"]) == 4
    assert summary["units_per_s"] > 0
