"""Lines of the run folder's files."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path

import pytest

from dynamix_ps.run_record.json_lines import JsonLines


def test_lines_are_appended_in_a_folder_that_is_made_for_them(tmp_path: Path) -> None:
    file = tmp_path / "roles" / "server-0.jsonl"
    JsonLines(file).write({"a": 1})
    JsonLines(file).write({"b": [1.5, (2, math.nan)], "c": {"d": math.inf}})
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"a": 1},
        {"b": [1.5, [2, None]], "c": {"d": None}},
    ]


def test_a_disk_that_fails_is_said_once_and_raises_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    lines = JsonLines(tmp_path / "file" / "below.jsonl")
    with caplog.at_level(logging.WARNING):
        lines.write({"a": 1})
        lines.write({"a": 2})
    assert len(caplog.records) == 1
    assert "below.jsonl" in caplog.text
