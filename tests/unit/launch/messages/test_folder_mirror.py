"""Files of a run folder on another host reach the launcher's: what grows, what is replaced, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dynamix_ps.launch.messages.agent_messages import MAX_DATA_BYTES, FilePart
from dynamix_ps.launch.messages.folder_mirror import GROWS, FolderReceiver, FolderSender, parts_of
from dynamix_ps.run_record.iteration_mark import IterationMark
from dynamix_ps.run_record.json_lines import JsonLinesTail
from dynamix_ps.run_record.run_folder import RunFolder


class Pair:
    """A sender and a receiver; `room` messages pass before the stream is full."""

    def __init__(self, folder: Path) -> None:
        self.there, self.here = RunFolder(folder / "there"), RunFolder(folder / "here")
        self.there.make()
        self.here.make()
        self.parts: list[FilePart] = []
        self.room = 10**9
        receiver = FolderReceiver(self.here.path)

        def send(part: FilePart) -> None:
            self.room -= 1
            self.parts.append(part)
            receiver.take(part)

        self.sender = FolderSender(self.there.path, send, lambda: self.room > 0)

    def news(self) -> list[FilePart]:
        self.parts.clear()
        assert self.sender.send_news()
        return list(self.parts)


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def test_a_file_that_grows_is_sent_once_piece_by_piece(pair: Pair) -> None:
    with pair.there.worker_file(1).open("ab", buffering=0) as out:
        out.write(b'{"kind": "a"}\n{"ki')
        assert [(part.path, part.offset, part.total_bytes) for part in pair.news()] == [
            ("workers/worker-1.jsonl", 0, GROWS)
        ]
        assert pair.news() == []
        out.write(b'nd": "b"}\n')
        assert [part.data for part in pair.news()] == [b'nd": "b"}\n']
    assert pair.here.worker_file(1).read_bytes() == pair.there.worker_file(1).read_bytes()


def test_another_sender_goes_on_behind_what_the_one_before_it_has_sent(pair: Pair, tmp_path: Path) -> None:
    pair.there.worker_file(1).write_bytes(b'{"kind": "a"}\n{"ki')
    pair.news()
    again = RunFolder(tmp_path / "again")
    again.make()
    receiver = FolderReceiver(pair.here.path)
    sender = FolderSender(again.path, receiver.take, lambda: True)
    for line in (b'{"kind": "b"}\n', b'{"kind": "c"}\n'):
        with again.worker_file(1).open("ab") as out:
            out.write(line)
        sender.send_news()
    whole = b'{"kind": "a"}\n{"ki{"kind": "b"}\n{"kind": "c"}\n'
    assert pair.here.worker_file(1).read_bytes() == whole
    assert [line["kind"] for line in JsonLinesTail(pair.here.worker_file(1)).read()] == ["a", "b", "c"]


def test_the_mark_of_an_iteration_follows_though_its_size_stays(pair: Pair) -> None:
    mark = IterationMark(pair.there.iteration_file(0))
    for iteration in (1, 2):
        mark.write(iteration)
        assert len(pair.news()) == 1
        assert pair.here.iteration_file(0).read_bytes() == iteration.to_bytes(8, "little")
    mark.close()
    assert pair.news() == []


def test_a_replaced_file_takes_effect_when_it_is_whole(pair: Pair) -> None:
    there, here = pair.there.checkpoints_dir / "last.pt", pair.here.checkpoints_dir / "last.pt"
    there.write_bytes(b"old" * 100)
    pair.news()
    fresh = there.with_name(".last.pt.x")
    fresh.write_bytes(os.urandom(2 * MAX_DATA_BYTES + 5))
    assert pair.news() == [], "a hidden file is not finished"
    os.replace(fresh, there)
    pair.room = 2
    assert not pair.sender.send_news()
    assert here.read_bytes() == b"old" * 100
    os.unlink(there)  # the next one is under way; this one is read to its end
    pair.room = 10
    assert pair.sender.send_news()
    assert len(here.read_bytes()) == 2 * MAX_DATA_BYTES + 5
    assert sorted(path.name for path in pair.here.checkpoints_dir.iterdir()) == ["last.pt"]


def test_half_a_file_of_a_lost_host_does_not_stay(pair: Pair) -> None:
    receiver = FolderReceiver(pair.here.path)
    receiver.take(FilePart("checkpoints/last.pt", 0, 100, b"x" * 50))
    assert len(list(pair.here.checkpoints_dir.iterdir())) == 1
    receiver.close()
    assert list(pair.here.checkpoints_dir.iterdir()) == []


def test_without_room_nothing_is_sent_and_nothing_forgotten(pair: Pair) -> None:
    pair.there.role_file("server-0").write_bytes(b"x" * 10)
    pair.room = 0
    assert not pair.sender.send_news()
    pair.room = 1
    pair.there.role_file("server-0").write_bytes(b"x" * (MAX_DATA_BYTES + 3))
    assert not pair.sender.send_news()
    pair.room = 5
    assert pair.sender.send_news()
    assert pair.here.role_file("server-0").stat().st_size == MAX_DATA_BYTES + 3


def test_only_files_in_the_folders_of_roles_are_sent(pair: Pair, tmp_path: Path) -> None:
    pair.there.config_file.write_text("x")
    (pair.there.workers_dir / "folder").mkdir()
    (pair.there.logs_dir / "link.log").symlink_to(tmp_path)
    assert pair.news() == []


@pytest.mark.parametrize(
    "path",
    ["../x", "workers/../../x", "/etc/x", "config.resolved.yaml", "workers/a/b", "plots/x", "workers/.x", "workers"],
)
def test_no_agent_writes_elsewhere(pair: Pair, path: str) -> None:
    with pytest.raises(ValueError, match="expected one in workers, roles"):
        FolderReceiver(pair.here.path).take(FilePart(path, 0, GROWS, b"x"))


def test_a_link_in_the_run_folder_is_not_followed(pair: Pair, tmp_path: Path) -> None:
    (pair.here.workers_dir / "worker-0.jsonl").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"):
        FolderReceiver(pair.here.path).take(FilePart("workers/worker-0.jsonl", 0, GROWS, b"x"))
    assert not (tmp_path / "victim").exists()


def test_a_checkpoint_goes_the_other_way_too(pair: Pair, tmp_path: Path) -> None:
    file = tmp_path / "own.pt"
    file.write_bytes(b"")
    for part in parts_of(file, "checkpoints/own.pt"):
        FolderReceiver(pair.there.path).take(part)
    assert (pair.there.checkpoints_dir / "own.pt").read_bytes() == b""
    with pytest.raises(FileNotFoundError):
        parts_of(tmp_path / "none.pt", "checkpoints/none.pt")
