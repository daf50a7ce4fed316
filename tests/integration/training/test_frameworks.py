"""The frameworks on three uneven workers of real BytePS. `python -m benchmarks.studies.frameworks` trains longer."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.studies.frameworks import SCRIPTS, summary_of

FRAMEWORKS = ("accelerate", "lightning", "transformers")
SAMPLES = 1200  # of digits, and lines of text
SCRIPT = f"""
import runpy, sys
sys.argv[1:] = ["--epochs", "3", "--samples", "{SAMPLES}", "--images", "digits"]
for name in {FRAMEWORKS}:
    runpy.run_module(f"{SCRIPTS}.with_{{name}}", run_name="__main__")
"""


@pytest.mark.skipif(not all(map(find_spec, FRAMEWORKS)), reason="not all extras of the frameworks are installed")
def test_a_script_in_each_framework_learns_on_three_workers(tmp_path: Path) -> None:
    """One after the other in the same processes, because starting them takes most of the time."""
    summary = summary_of(tmp_path, "python", "-c", SCRIPT, window=5)
    assert (summary["exit_code"], summary["degraded"]) == (0, [])
    assert summary["samples"] == len(FRAMEWORKS) * 3 * SAMPLES
    assert summary["plans_applied"] >= 1
    values = [evaluation["values"] for evaluation in summary["evaluations"]]
    assert [set(one) for one in values] == [{"accuracy"}] * 6 + [{"loss"}] * 3
    assert values[2]["accuracy"] > 0.2 and values[5]["accuracy"] > 0.2  # by chance 0.1; some plans leave 15 steps
    assert values[8]["loss"] < values[6]["loss"] < 5.5  # log(256) if all bytes were alike
