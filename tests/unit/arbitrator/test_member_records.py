"""Records of membership on disk."""

from __future__ import annotations

from pathlib import Path

from dynamix_ps.arbitrator.member_records import MemberRecords
from dynamix_ps.membership.journal import Began, Decided, Founded, Joined, Lost, Record
from dynamix_ps.membership.messages import Process

WORKER = Process("worker", 1, "abc", "host:1")
RECORDS: list[Record] = [Joined(WORKER), Founded(), Began(1), Decided(1, 12), Lost(WORKER, "it has exited")]


def test_a_later_arbitrator_reads_what_earlier_ones_have_written(tmp_path: Path) -> None:
    for part in (RECORDS[:2], RECORDS[2:]):
        file = MemberRecords(tmp_path / "arbitrator" / "membership.jsonl")
        file.append(part)
        file.close()
    file = MemberRecords(tmp_path / "arbitrator" / "membership.jsonl")
    assert file.earlier == RECORDS
    file.close()


def test_a_line_that_was_cut_off_is_dropped_and_the_next_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "membership.jsonl"
    file = MemberRecords(path)
    file.append(RECORDS[:3])
    file.close()
    path.write_bytes(path.read_bytes()[:-5])
    file = MemberRecords(path)
    assert file.earlier == RECORDS[:2]
    file.append(RECORDS[3:])
    file.close()
    file = MemberRecords(path)
    assert file.earlier == [*RECORDS[:2], *RECORDS[3:]]
    file.close()
