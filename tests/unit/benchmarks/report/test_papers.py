"""The results of papers and of a grid appear side by side in the same quantities."""

from __future__ import annotations

from benchmarks.report.papers import figures
from benchmarks.suite.statistics import races, with_static
from tests.unit.benchmarks.suite.made_up_cells import made_up


def test_the_same_quantity_in_each_column() -> None:
    cells = [made_up(name, time_s) for name, time_s in (("static-64", 40), ("ppo", 10), ("pid", 20))]
    (block,) = figures(with_static(races(cells)), "runs/mine")
    lines = block.splitlines()
    assert "| the paper | abstract, up to 32 nodes | 0.54 | up to 46 % | up to 1.9 | up to +6.3 |" in lines
    assert "| the paper | ResNet-50, CIFAR-10, H-level 10 | 0.42 | 58 % | 2.4 | n/a |" in lines
    assert "| here, `ppo` | h-level-4, fashion-cnn, against static-64, 1 seed | 0.25 | 75 % | 4.0 | +0.0 |" in lines
    assert "| here, `pid` | h-level-4, fashion-cnn, against static-64, 1 seed | 0.50 | 50 % | 2.0 | +0.0 |" in lines
    assert not any("ppo-paper" in line for line in lines)  # took no part
