"""Role output: the file gets it completely and unchanged, and it cannot control the terminal."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TextIO, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from dynamix_ps.launch.logs import LAST_LINES, MAX_LINE, LineSplitter, PrefixedOutput, RoleLog
from dynamix_ps.run_record.role_files import DEGRADED
from dynamix_ps.terminal import TolerantStream


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


def output(line: str) -> str:
    stream = io.StringIO()
    PrefixedOutput(Console(file=stream, width=20), ["server-0", "worker-10"])("server-0", line)
    return stream.getvalue()


def test_lines_are_prefixed_never_wrapped_and_never_taken_for_markup() -> None:
    assert output("[bold]a[/bold] :smile: " + "x" * 30) == f"server-0  | [bold]a[/bold] :smile: {'x' * 30}\n"


def test_a_degradation_is_left_to_the_live_view_which_tells_it_once_for_all_roles() -> None:
    assert output(f"WARNING {DEGRADED}worker 0: network metrics: no eBPF") == ""


def test_control_characters_cannot_steer_the_terminal() -> None:
    shown = output("a\x1b[31mred\x1b[0m\x1b[2J\x07\x08b\tc")
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "red" in shown
    assert "\tc" in shown or "c" in shown


def test_a_reader_that_went_away_does_not_end_the_run() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        os.close(reading)
        console = Console(file=cast(TextIO, TolerantStream(stream)))
        show = PrefixedOutput(console, ["w"])
        show("w", "one")
        show("w", "two")


@pytest.mark.parametrize(
    ("encoding", "shown"), [("ascii", b"h?llo ?"), ("latin-1", b"h\xe9llo ?"), ("utf-8", "héllo 批".encode())]
)
def test_what_the_encoding_of_the_terminal_lacks_is_shown_as_a_question_mark(encoding: str, shown: bytes) -> None:
    written = io.BytesIO()
    terminal = io.TextIOWrapper(written, encoding=encoding, write_through=True)
    TolerantStream(terminal).write("héllo 批")
    assert written.getvalue() == shown
