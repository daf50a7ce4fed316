"""Figures that two pages state are the same."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_starts_in_the_results_are_those_of_their_page() -> None:
    page = (ROOT / "benchmarks" / "results" / "launch.md").read_text()
    rows = re.findall(r"^\| (\d) \| [\d.]+ s \| [\d.]+ s \| ([\d.]+) \| [\d.]+ s \| ([\d.]+) \|$", page, re.MULTILINE)
    (_, off_3, adapt_3), (_, off_8, adapt_8) = rows
    (row,) = [line for line in (ROOT / "docs" / "results.md").read_text().splitlines() if "launch.md" in line]
    assert f"{off_3} and {off_8} of torchrun's time with `mode: off`, {adapt_3} and {adapt_8} with all" in row
