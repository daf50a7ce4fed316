from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from dynamix_ps.arbitrator.journal import Resumed, replay
from dynamix_ps.messages import Plan
from dynamix_ps.run_record import json_lines
from dynamix_ps.run_record.json_lines import Journal


def decision(journal: Journal, kind: str, window: int, version: int, sizes: tuple[int, ...] = (1, 2)) -> None:
    journal.write(kind, sync=True, window=window, version=version, batch_sizes=sizes, reward=None)


def registered(journal: Journal, rank: int, incarnation: str, version: int = 0) -> None:
    journal.write("registered", rank=rank, incarnation=incarnation, plan_version=version)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "arbitrator" / "journal.jsonl"


def test_nothing_written_nothing_resumed(file: Path) -> None:
    assert replay(file) == Resumed()


def test_replay_restores_what_was_decided(file: Path) -> None:
    journal = Journal(file)
    journal.write("started", policy="static", workers=2, restarts=0)
    registered(journal, 0, "a", version=2**23)  # what a worker says it holds does not count
    journal.write("adopted", version=3, batch_sizes=(29, 39))
    assert replay(file).plan == Plan(3, (29, 39))
    registered(journal, 1, "b")
    decision(journal, "plan", 0, 4, (30, 40))
    decision(journal, "kept", 1, 4)
    decision(journal, "plan", 2, 5, (31, 41))
    decision(journal, "kept", 3, 5)
    registered(journal, 0, "c")
    journal.close()
    assert replay(file) == Resumed(
        plan=Plan(5, (31, 41)),
        window=3,
        newest_version=5,
        decisions=4,
        starts=1,
        retired=frozenset({(0, "a")}),
    )


def test_the_incarnation_of_a_lost_worker_does_not_come_back(file: Path) -> None:
    journal = Journal(file)
    registered(journal, 2, "a")
    journal.write("lost", role="server", slot=2, incarnation="x", reason="")
    assert replay(file).retired == frozenset()
    for slot in (2, 1):  # worker 1 had not registered
        journal.write("lost", role="worker", slot=slot, incarnation="y", reason="")
    registered(journal, 2, "b")
    assert replay(file).retired == frozenset({(2, "a")})


def test_a_decision_that_was_written_after_a_newer_plan_is_not_the_newest(file: Path) -> None:
    journal = Journal(file)
    journal.write("adopted", version=5, batch_sizes=(60, 0))
    decision(journal, "plan", 2, 4, (31, 29))
    assert (replay(file).plan, replay(file).newest_version) == (Plan(5, (60, 0)), 5)


def test_observed_decisions_close_windows_but_are_no_plans(file: Path) -> None:
    journal = Journal(file)
    decision(journal, "observed", 5, 0, (9, 9))
    assert replay(file) == Resumed(window=5, decisions=1)


def test_every_cut_of_the_last_line_is_survived(file: Path) -> None:
    journal = Journal(file)
    decision(journal, "plan", 0, 1, (30, 40))
    whole = file.read_bytes()
    decision(journal, "plan", 1, 2, (50, 60))
    content = file.read_bytes()
    journal.close()
    for cut in range(len(whole), len(content) - 1):
        file.write_bytes(content[:cut])
        assert replay(file).plan == Plan(1, (30, 40))
        again = Journal(file)
        decision(again, "plan", 2, 3, (70, 80))
        again.close()
        assert replay(file) == Resumed(Plan(3, (70, 80)), window=2, newest_version=3, decisions=2)
    file.write_bytes(content[:-1])  # only the newline is missing: the line counts
    assert replay(file).plan == Plan(2, (50, 60))


def test_foreign_and_incomplete_lines_are_skipped(file: Path) -> None:
    file.parent.mkdir()
    file.write_bytes(
        b'[1, 2]\n\xff\xfe\n{"kind": 3}\n{"kind": "plan", "window": "x", "version": 1}\n{"kind": "kept"}\n\n'
        b'{"kind": "later", "window": 9}\n{"kind": "plan", "window": 4, "version": 2, "batch_sizes": [5, 6]}\n'
    )
    assert replay(file).plan == Plan(2, (5, 6))
    assert replay(file).window == 4


def test_unknown_numbers_are_null(file: Path) -> None:
    journal = Journal(file)
    journal.write("update", loss=math.nan, parts=[1.0, math.inf], sizes=(1, 2))
    line = json.loads(file.read_text())
    assert (line["loss"], line["parts"], line["sizes"]) == (None, [1.0, None], [1, 2])
    assert line["time_s"] > 1e9


def test_a_decision_is_on_disk_before_anybody_hears_of_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, kept = Journal(file), list[bytes]()
    monkeypatch.setattr(json_lines.os, "fsync", lambda out: kept.append(file.read_bytes()))
    journal.write("update")
    assert kept == []
    decision(journal, "plan", 0, 1)
    assert kept == [file.read_bytes()]


def test_the_factor_on_the_learning_rate_comes_back(file: Path) -> None:
    journal = Journal(file)
    decision(journal, "plan", 0, 1)
    assert replay(file).plan == Plan(1, (1, 2))
    journal.write("plan", window=1, version=2, batch_sizes=(1, 2), lr_factor=0.5)
    journal.close()
    assert replay(file).plan == Plan(2, (1, 2))
