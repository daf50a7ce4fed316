"""Role output: the file gets it completely and unchanged."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps.launch.job.logs import LAST_LINES, RoleLog
from dynamix_ps.launch.messages.line_splitter import MAX_LINE, LineSplitter


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r")), st.lists(st.integers(1, 7)))
def test_cutting_the_bytes_anywhere_gives_the_same_lines(text: str, cuts: list[int]) -> None:
    data, splitter, lines = text.encode(), LineSplitter(), []
    for size in cuts:
        lines += splitter.feed(data[:size])
        data = data[size:]
    lines += splitter.feed(data, final=True)
    expected = text.split("\n")
    assert lines == (expected if expected[-1] else expected[:-1])


@given(st.lists(st.binary(max_size=20)))
def test_any_bytes_are_shown_somehow(pieces: list[bytes]) -> None:
    splitter = LineSplitter()
    for piece in pieces:
        splitter.feed(piece)
    splitter.feed(b"", final=True)


def test_a_progress_bar_shows_its_last_state() -> None:
    assert LineSplitter().feed(b" 1%\r50%\r100%\r\n done\r\n") == ["100%", " done"]


def test_endless_lines_are_cut() -> None:
    lines = LineSplitter().feed(b"x" * (2 * MAX_LINE + 1))
    assert [len(line) for line in lines] == [MAX_LINE, MAX_LINE]


def test_a_long_output_without_a_newline_keeps_one_piece_in_memory() -> None:
    splitter = LineSplitter()
    for _ in range(40):
        splitter.feed(b"x" * (1 << 18))
    assert sum(map(len, splitter.feed(b"", final=True))) <= MAX_LINE


def test_the_file_holds_the_bytes_as_they_came_and_the_tail_the_last_lines(tmp_path: Path) -> None:
    log = RoleLog(tmp_path / "r.log")
    raw = b"".join(b"line %d \xff\r\n" % number for number in range(50)) + b"no newline"
    for start in range(0, len(raw), 33):
        log.write(raw[start : start + 33])
    log.write(b"", final=True)
    assert (tmp_path / "r.log").read_bytes() == raw
    assert len(log.last_lines) == LAST_LINES
    assert log.last_lines[-1] == "no newline"
    assert log.problem is None


def test_a_full_disk_is_noted_and_output_goes_on() -> None:
    log = RoleLog(Path("/dev/full"))
    assert log.write(b"one\ntwo\n") == ["one", "two"]
    assert log.problem is not None
    assert "No space left" in log.problem
    assert log.write(b"three\n") == ["three"]


def test_a_folder_that_is_gone_is_noted(tmp_path: Path) -> None:
    log = RoleLog(tmp_path / "none" / "r.log")
    assert log.write(b"one\n", final=True) == ["one"]
    assert log.problem is not None
