"""The rematch pools folders, and compares runs only within a folder."""

from __future__ import annotations

from pathlib import Path

from benchmarks.report.grid_page import every_run
from benchmarks.report.rematch import figures
from benchmarks.suite.statistics import races, with_static
from benchmarks.suite.tables import write_tables
from tests.unit.benchmarks.suite.made_up_cells import made_up


def test_the_same_seed_in_two_folders_is_two_runs(tmp_path: Path) -> None:
    folders = {
        "proof": {"static-64": 40, "pid": 20, "goodput": 40, "ppo": 20},
        "rematch": {"goodput": 24, "ppo": 28},  # no static; pid failed
    }
    for name, times in folders.items():
        (tmp_path / name).mkdir()
        cells = [made_up(who, s, scenario=where) for where in ("spot", "h-level-4") for who, s in times.items()]
        write_tables(tmp_path / name, cells)
    (block,) = figures(with_static(races(every_run([tmp_path / name for name in folders]))), "proof rematch")
    command, _, title, _, *rows = block.strip().splitlines()
    assert command == "`python -m benchmarks.report.rematch proof rematch --out benchmarks/results/history`."
    assert title.startswith("| scenario | runs of each | t / t_pid | shorter than `pid` | t / t_goodput |")
    (row,) = [line.strip("| ").split(" | ") for line in rows]
    assert row[:4] == ["spot", "1", "1.00", "0.50"]
    assert row[4] == "0.76"  # sqrt(20 / 40 * 28 / 24)
