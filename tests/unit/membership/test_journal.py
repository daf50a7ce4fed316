"""What the coordinator writes is read back, whatever it died in."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamix_ps.membership.journal import (
    Began,
    Decided,
    Finished,
    Founded,
    Joined,
    Left,
    Lost,
    Record,
    as_plain,
    from_plain,
)
from dynamix_ps.membership.journal_file import JournalFile
from dynamix_ps.membership.messages import Process

WORKER = Process("worker", 1, "abc", "10.0.0.1:7000", "10.0.0.1:7001")
SERVER = Process("server", 0, "def", "10.0.0.2:7000")
RECORDS: tuple[Record, ...] = (
    Joined(WORKER),
    Joined(SERVER),
    Founded(),
    Began(1),
    Decided(1, 0),
    Lost(WORKER, "it has exited"),
    Left(SERVER),
    Finished("all have left"),
)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_comes_back_as_it_was(record: Record) -> None:
    back = from_plain(as_plain(record))
    assert back == record
    for place in ("address", "state_address"):
        assert getattr(getattr(back, "process", WORKER), place) == getattr(getattr(record, "process", WORKER), place)


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_decision_that_was_cut_off_is_not_there_at_all(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "members.jsonl"
    journal = JournalFile(file)
    journal.append(RECORDS[:3])
    size = file.stat().st_size
    journal.append(RECORDS[3:5])
    with file.open("r+b") as torn:
        torn.truncate(size + cut)
    again = JournalFile(file)
    assert again.records == RECORDS[:3]
    again.append(RECORDS[3:])
    assert JournalFile(file).records == RECORDS


def test_a_damaged_line_is_an_error_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "members.jsonl"
    file.write_text('[{"kind": "founded"}]\n[{"kind": "unknown"}]\n[{"kind": "founded"}]\n', encoding="utf-8")
    with pytest.raises(ValueError, match="line 2"):
        JournalFile(file)


@pytest.mark.parametrize(
    "line",
    [
        "[" * 200_000,
        "3",
        '[{"kind": ["founded"]}]',
        '[{"kind": "began", "generation": "1"}]',
        '[{"kind": "began", "generation": 1e400}]',
        '[{"kind": "began"}]',
        '[{"kind": "joined", "process": {"role": {"a": 1}, "slot": 0, "incarnation": "a"}}]',
        '[{"kind": "joined", "process": {"role": "worker", "slot": [], "incarnation": "a"}}]',
        '[{"kind": "offered", "entry": 3}]',
    ],
    ids=lambda line: line[:60],
)
def test_a_line_of_another_form_is_an_error_too(tmp_path: Path, line: str) -> None:
    file = tmp_path / "members.jsonl"
    file.write_text(f'[{{"kind": "founded"}}]\n{line}\n', encoding="utf-8")
    with pytest.raises(ValueError, match="line 2"):
        JournalFile(file)
