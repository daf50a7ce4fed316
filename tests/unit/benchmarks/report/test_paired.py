"""Pages of pairs, such as beside DDP: ratios of seconds per sample, paired by seed, and what is decided."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pytest

from benchmarks.report.paired import figures, verdict
from benchmarks.report.report import report_text
from benchmarks.suite.results import CellResult
from dynamix_ps.errors import UsageError
from dynamix_ps.sim.contest.comparison import Estimate
from tests.unit.benchmarks.suite.made_up_cells import made_up

RATES = {"ddp": (1000, 2000, 1000), "ddp-by-hand": (1500, 3000, 1500), "ppo": (2200, 4500, 2250)}  # samples/s by seed


def cells(rates: Mapping[str, Sequence[int]] = RATES) -> Iterable[CellResult]:
    for name, of_seeds in rates.items():
        for seed, rate in enumerate(of_seeds, 1):
            cell = made_up(name, 40_000 / rate, seed=seed, samples_per_s=rate)
            yield replace(cell, workers=(), wait_fraction=None) if name.startswith("ddp") else cell


def row(block: str, begin: str) -> list[str]:
    """Without the scenario."""
    (line,) = (line for line in block.splitlines() if f" | {begin} |" in line)
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_ratios_are_paired_by_seed_and_compared_with_the_bars() -> None:
    """Seed 2 ran on a machine twice as fast, which cancels."""
    block = figures(cells(), "beside-ddp", "mine")
    clock, bar, said = row(block, "`ppo` over `ddp`")[1:4]
    assert clock.startswith("0.448 [") and (bar, said) == ("0.50", "**met**")
    assert row(block, "`ppo` over `ddp-by-hand`")[1:4] == ["0.672 [0.650, 0.694]", "0.90", "**met**"]
    assert row(block, "`ddp-by-hand` over `ddp`")[1:4] == ["0.667", "", ""]
    assert row(block, "`ddp`")[2] == "1000 500 1000"
    assert "by-hand` over `ddp-by-hand" not in block, "it did not run"


def test_a_seed_without_its_partner_or_without_its_end_does_not_count() -> None:
    every = list(cells())
    cut_off = [
        replace(one, ended="timed out") if (one.name.contender, one.name.seed) == ("ddp", 2) else one for one in every
    ]
    assert row(figures(cut_off, "beside-ddp", "mine"), "`ppo` over `ddp`")[-1] == "1 3"


@pytest.mark.parametrize(
    ("estimate", "seeds", "said"),
    [
        (Estimate(0.45, 0.40, 0.50), 5, "**met**"),
        (Estimate(0.45, 0.40, 0.51), 5, "met, not decided"),
        (Estimate(0.55, 0.49, 0.60), 5, "missed, not decided"),
        (Estimate(0.55, 0.51, 0.60), 5, "**missed**"),
        (Estimate(0.45, 0.45, 0.45), 1, "met, not decided"),
    ],
)
def test_a_bar_is_decided_where_the_whole_interval_is_on_one_side(estimate: Estimate, seeds: int, said: str) -> None:
    assert verdict(estimate, 0.5, seeds) == said


def test_nothing_to_compare_is_refused() -> None:
    with pytest.raises(UsageError, match="no two of the contenders"):
        figures(cells({"ppo": (1000,)}), "beside-ddp", "mine")


def test_the_report_of_a_grid_has_rows_of_contenders_without_our_hook() -> None:
    text = report_text(list(cells()), [])
    for name in ("ddp", "ddp-by-hand"):
        rows = [line for line in text.splitlines() if line.startswith(f"| `{name}` |")]
        assert len(rows) >= 4, rows  # times, values, costs, who takes part
        assert any("DistributedDataParallel" in line or "the same with sizes" in line for line in rows)
