"""Lines of the run folder's files."""

from __future__ import annotations

import json
import logging
import math
import threading
from pathlib import Path

import pytest

from dynamix_ps.run_record.json_lines import KEPT_BYTES, JsonLines
from tests.full_disk import room_for


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


def test_what_a_full_disk_does_not_take_is_written_when_there_is_room(tmp_path: Path) -> None:
    file = tmp_path / "worker-0.jsonl"
    lines = JsonLines(file)
    with room_for(20):
        for number in range(5):
            lines.write({"number": number})
    assert len(file.read_bytes()) == 20, "within the second line"
    lines.write({"number": 5})
    assert [json.loads(line)["number"] for line in file.read_text().splitlines()] == list(range(6))


def test_a_process_that_ends_waits_for_room_on_the_disk(tmp_path: Path) -> None:
    files = [tmp_path / "worker-0.jsonl", tmp_path / "worker-1.jsonl"]
    impatient, patient = map(JsonLines, files)
    with room_for(0):
        for lines in (impatient, patient):
            lines.write({"kind": "worker_left"})
        impatient.close(0.1)
        waits = threading.Thread(target=patient.close, args=(60.0,))
        waits.start()
    waits.join()
    assert [file.read_text() for file in files] == ["", '{"kind": "worker_left"}\n']


def test_only_so_much_is_kept_and_whole_lines_alone(tmp_path: Path) -> None:
    file = tmp_path / "worker-0.jsonl"
    lines = JsonLines(file)
    with room_for(0):
        for _ in range(30):
            lines.write({"text": "x" * (KEPT_BYTES // 10)})
    lines.close()
    sizes = {len(json.loads(line)["text"]) for line in file.read_text().splitlines()}
    assert sizes == {KEPT_BYTES // 10} and file.stat().st_size < 1.2 * KEPT_BYTES
