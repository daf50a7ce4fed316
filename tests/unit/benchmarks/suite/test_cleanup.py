"""Folders of cells: kept while their process lives, removed when it has ended."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from benchmarks.suite import cleanup as leftovers


def test_only_folders_of_cells_that_have_ended_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(leftovers, "release_stale", list)
    monkeypatch.setattr(leftovers, "remove_left_over", list)
    mine, other = leftovers.cell_folder(), tmp_path / "dx-another"
    dead = tmp_path / "dx-cell-abc"
    for folder in (dead, other):
        folder.mkdir()
    (dead / "log").write_text("half a run")
    assert leftovers.remove_leftovers() == [f"folder {dead}"]
    assert sorted(tmp_path.iterdir()) == sorted([mine, other])
