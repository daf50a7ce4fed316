"""The digest of what a worker computes: the same in the next run, and another one for another script or model."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from dynamix_ps.rpc.fields import LARGEST_TEXT
from worker_hooks.process.work import work_digest

LAYER = {"weight": "(4, 20) float32", "bias": "(4,) float32"}


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The script that this process seems to run."""
    file = tmp_path / "train.py"
    file.write_text("train()")
    main = ModuleType("__main__")
    main.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return file


def test_it_is_the_same_where_the_script_lies_elsewhere(script: Path) -> None:
    before = work_digest(LAYER)
    moved = script.rename(script.with_name("moved.py"))
    sys.modules["__main__"].__file__ = str(moved)
    assert work_digest(LAYER) == before
    assert 0 < len(before) <= LARGEST_TEXT


def test_each_part_counts(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {work_digest(LAYER), work_digest({**LAYER, "bias": "(4,) float32 on cuda"})}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    found.add(work_digest(LAYER))
    script.write_text("train(more)")
    found.add(work_digest(LAYER))
    assert len(found) == 4


def test_a_script_that_is_no_file_has_none(script: Path) -> None:
    script.unlink()
    assert not work_digest(LAYER)
    del sys.modules["__main__"].__file__
    assert not work_digest(LAYER)
