"""Rows of a simulated study: what is kept, what runs again, and that a table is whole or as it was."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.report.page import write_csv
from benchmarks.studies.kept_rows import Row, key_of, read_rows, run_missing, took_s
from dynamix_ps.sim.scenario.load import load_scenario


@dataclass(frozen=True)
class Named:
    title: str

    @property
    def key(self) -> str:
        return f"key of {self.title}"


def two_rows(cell: Named) -> list[Row]:
    return [{"cell": cell.title, "number": number} for number in range(2)]


def test_only_what_is_missing_runs(tmp_path: Path) -> None:
    file, cells = tmp_path / "rows.csv", [Named("a"), Named("b"), Named("c")]
    rows, left = run_missing(cells, two_rows, file, limit_s=0.0, processes=1)
    assert (len(rows), left) == (2, 2)
    ran: list[str] = []

    def noted(cell: Named) -> list[Row]:
        ran.append(cell.title)
        return two_rows(cell)

    rows, left = run_missing(cells, noted, file, processes=1)
    assert (ran, left) == (["b", "c"], 0)
    assert [row["cell"] for row in rows] == ["a", "a", "b", "b", "c", "c"]
    assert [{name: str(value) for name, value in row.items()} for row in rows] == read_rows(file)


def test_rows_of_other_cells_go(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    run_missing([Named("a"), Named("b")], two_rows, file, processes=1)
    rows, left = run_missing([Named("b"), Named("c")], two_rows, file, processes=1)
    assert left == 0
    assert {row["cell"] for row in rows} == {row["cell"] for row in read_rows(file)} == {"b", "c"}


def test_a_cell_counts_its_time_once() -> None:
    assert took_s([{"key": "a", "took_s": "2.0"}, {"key": "a", "took_s": "2.0"}, {"key": "b", "took_s": "0.5"}]) == 2.5


def test_a_key_is_that_of_clusters_and_settings() -> None:
    scenario = load_scenario("h-level-4")
    others = [
        key_of([scenario], 3),
        key_of([scenario.model_copy(update={"jitter": 0.5})], 2),
        key_of([scenario, scenario], 2),
    ]
    assert key_of([scenario], 2) == key_of([load_scenario("h-level-4")], 2)
    assert key_of([scenario], 2) not in others


def test_a_table_that_cannot_be_written_whole_stays_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    write_csv(file, [{"a": 1}])
    before = file.read_text()
    with pytest.raises(ValueError, match="'b'"):
        write_csv(file, [{"a": 2}, {"b": 3}])
    assert file.read_text() == before
