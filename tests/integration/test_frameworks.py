"""The frameworks on three uneven workers of real BytePS. `python -m benchmarks.studies.frameworks` trains longer."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.studies.frameworks import SCRIPTS, launched

FRAMEWORKS = ("accelerate", "lightning", "transformers")
SAMPLES = 1200  # of digits, and lines of text
SCRIPT = f"""
import runpy, sys
sys.argv[1:] = ["--epochs", "2", "--samples", "{SAMPLES}", "--images", "digits"]
for name in {FRAMEWORKS}:
    runpy.run_module(f"{SCRIPTS}.with_{{name}}", run_name="__main__")
"""


@pytest.mark.skipif(not all(map(find_spec, FRAMEWORKS)), reason="not all extras of the frameworks are installed")
def test_a_script_in_each_framework_learns_on_three_workers(tmp_path: Path) -> None:
    """One after the other in the same processes, because starting them takes most of the time."""
    summary = launched(tmp_path, "python", "-c", SCRIPT, window=5)
    assert (summary["exit_code"], summary["degraded"]) == (0, [])
    assert summary["samples"] == len(FRAMEWORKS) * 2 * SAMPLES
    assert summary["plans_applied"] >= 1
    values = [evaluation["values"] for evaluation in summary["evaluations"]]
    assert [set(one) for one in values] == [{"accuracy"}] * 4 + [{"loss"}] * 2
    assert values[1]["accuracy"] > 0.5 and values[3]["accuracy"] > 0.5
    assert values[5]["loss"] < values[4]["loss"] < 5.0  # log(256) = 5.5 if all bytes were alike
