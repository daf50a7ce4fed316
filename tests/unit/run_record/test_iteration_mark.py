"""The mark says in which iteration a worker is; a disk that fails leaves the worker alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dynamix_ps.run_record.iteration_mark import IterationMark, read_mark


def test_the_newest_iteration_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mark"
    assert read_mark(file) is None
    mark = IterationMark(file)
    assert read_mark(file) is None
    for iteration in (1, 70_000, 3):
        mark.write(iteration)
        assert read_mark(file) == iteration
    mark.close()


def test_a_disk_that_fails_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    IterationMark(tmp_path / "no such folder" / "mark").write(1)
    mark = IterationMark(tmp_path / "mark")
    monkeypatch.setattr(os, "pwrite", full)
    mark.write(1)
    mark.write(2)
    assert read_mark(tmp_path / "mark") is None
