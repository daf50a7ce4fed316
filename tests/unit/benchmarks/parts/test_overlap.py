"""Figures and table of `benchmarks.parts.overlap`."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from benchmarks.parts.overlap import RATIOS, summary, table


def test_an_iteration_is_compared_with_the_longer_of_its_parts_in_the_same_block() -> None:
    blocks = {
        "alone": [(10.0, 0.1), (30.0, 0.1)],
        "sum": [(20.0, 0.2), (20.0, 0.2)],
        "ours": [(22.0, 0.3), (36.0, 0.3)],
        "next": [(20.0, 0.3), (36.0, 0.3)],
        "large": [(44.0, 0.3), (72.0, 0.3)],
        "bf16": [(11.0, 0.3), (27.0, 0.3)],
        "int8": [(11.0, 0.3), (9.0, 0.3)],
        "gloo": [(44.0, 0.5), (36.0, 0.7)],
    }
    row = {"case": "cnn:64", **summary(blocks)}
    assert [row[name] for name in RATIOS] == pytest.approx([1.15, 1.1, 0.5, 0.625, 0.375, 0.75, 0.727], abs=1e-3)
    assert row["cpu_s"]["gloo"] == pytest.approx(0.6)
    output = io.StringIO()
    Console(width=100, file=output).print(table([row]))
    assert output.getvalue().splitlines()[-1].split() == [
        "cnn:64",
        *("20", "20", "29", "28", "58", "19", "10", "40"),
        *("1.15", "1.10", "0.50", "0.62", "0.38", "0.75", "0.73"),
    ]
