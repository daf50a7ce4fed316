"""A script in each framework on three uneven workers of real BytePS. `benchmarks.studies.frameworks` trains longer."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.studies.frameworks import launched


@pytest.mark.parametrize("framework", ["lightning", "accelerate", "transformers"])
def test_a_script_learns_on_three_workers(framework: str, tmp_path: Path) -> None:
    if not find_spec(framework):
        pytest.skip(f"the extra `{framework}` is not installed")
    summary = launched(framework, tmp_path, "--epochs", "2", "--samples", "1200", "--images", "digits", window=5)
    assert (summary["exit_code"], summary["degraded"]) == (0, [])
    assert summary["samples"] == 2 * 1200
    assert len(summary["evaluations"]) == 2
    assert summary["plans_applied"] >= 1
    first, last = (evaluation["values"] for evaluation in summary["evaluations"])
    if framework == "transformers":
        assert last["loss"] < first["loss"] < 5.0  # log(256) = 5.5 if all bytes were alike
    else:
        assert last["accuracy"] > 0.5
