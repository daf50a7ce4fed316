"""Options and tables of `benchmarks.parts.comm_curve`."""

from __future__ import annotations

import argparse
import io

import pytest
from rich.console import Console

from benchmarks.parts.comm_curve import parse_size, table
from benchmarks.parts.references.comm_limits import judge
from benchmarks.report.page import size_text


@pytest.mark.parametrize(("text", "size_bytes"), [("64K", 65_536), ("1m", 1_048_576), ("256M", 268_435_456)])
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes
    assert size_text(size_bytes) == f"{text[:-1]} {text[-1].upper()}iB"


@pytest.mark.parametrize("text", ["", "K", "0M", "64", "1.5M", "-1K", "64KB"])
def test_sizes_that_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a size such as 64K or 16M"):
        parse_size(text)


def test_a_row_that_misses_one_bar_is_missed() -> None:
    figures = {"ratio_to_gloo": 0.43, "ratio_to_floor": 3.21}
    row = {
        "workers": 4,
        "size_bytes": 1 << 20,
        "ours_ms": 0.0123,
        "gloo_ms": 12.34,
        "floor_ms": 1234.4,
        "cpu_s": {"ours": 0.002, "gloo": 0.03},
        **figures,
    }
    met = {**row, "bars": judge(figures, {"ratio_to_gloo": 0.5, "ratio_to_floor": 4.0})}
    missed = {**row, "bars": judge(figures, {"ratio_to_gloo": 0.5, "ratio_to_floor": 3.0})}
    output = io.StringIO()
    Console(width=80, file=output).print(table("one_host", [met, missed]))
    lines = output.getvalue().splitlines()[-2:]
    assert lines[0].split() == ["4", "1", "MiB", "0.012", "12.3", "1234", "2.00/30.0", "0.43", "3.21", "met"]
    assert lines[1].split()[-1] == "missed"
