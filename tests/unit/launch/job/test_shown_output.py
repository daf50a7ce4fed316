"""Lines of roles on the terminal: they cannot control it, and of a flood the first and the last are shown."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import TextIO, cast

import pytest
from rich.console import Console

from dynamix_ps.errors import DEGRADED
from dynamix_ps.launch.job.shown_output import BURST_LINES, LAST_SHOWN, LINES_PER_S, TOLD_EVERY_S, PrefixedOutput
from dynamix_ps.terminal import TolerantStream


class Shown:
    """Output whose clock stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s, self._stream = 100.0, io.StringIO()
        self.output = PrefixedOutput(Console(file=self._stream), ["w", "x"], clock=lambda: self.now_s)

    def prints(self, lines: Sequence[str], name: str = "w", whole: bool = False) -> list[str]:
        """What these lines bring to the terminal."""
        self.output(name, lines, whole)
        return self.taken()

    def ticks(self, after_s: float) -> list[str]:
        self.now_s += after_s
        self.output.tick()
        return self.taken()

    def taken(self) -> list[str]:
        text = self._stream.getvalue()
        self._stream.seek(0)
        self._stream.truncate()
        return text.splitlines()


def numbered(first: int, end: int) -> list[str]:
    return [f"line {number}" for number in range(first, end)]


def prefixed(lines: Sequence[str]) -> list[str]:
    return [f"w | {line}" for line in lines]


def test_of_a_flood_the_first_lines_are_shown_then_how_many_are_left_out_and_the_last_ones() -> None:
    shown, end = Shown(), BURST_LINES + 18_000
    assert shown.prints(numbered(0, end)) == prefixed(numbered(0, BURST_LINES))
    assert shown.prints(numbered(end, end + 5)) == []
    assert shown.ticks(TOLD_EVERY_S / 2) == []
    last = numbered(end + 5 - LAST_SHOWN, end + 5)
    assert shown.ticks(TOLD_EVERY_S / 2) == prefixed([f"... {18_005 - LAST_SHOWN:,} more lines in w.log", *last])
    assert shown.ticks(TOLD_EVERY_S) == []


def test_in_the_long_run_a_role_gets_its_lines_per_second_and_others_are_not_touched() -> None:
    shown = Shown()
    shown.prints(numbered(0, BURST_LINES))
    assert shown.prints(["one"]) == []
    assert shown.prints(["other"], name="x") == ["x | other"]
    assert shown.ticks(TOLD_EVERY_S) == prefixed(["one"])
    lines = numbered(0, 10 * BURST_LINES)
    assert shown.prints(lines) == prefixed(lines[: int(LINES_PER_S * TOLD_EVERY_S)])


def test_what_stands_in_no_log_is_shown_whole_and_in_its_order() -> None:
    shown = Shown()
    shown.prints(numbered(0, BURST_LINES))
    assert shown.prints(["waits"]) == []
    lines = numbered(0, 2 * BURST_LINES)
    assert shown.prints(lines, whole=True) == prefixed(["waits", *lines])


def test_at_the_end_nothing_waits() -> None:
    shown = Shown()
    shown.prints(numbered(0, BURST_LINES + 1))
    shown.output.finish()
    assert shown.taken() == prefixed([f"line {BURST_LINES}"])


def output(line: str) -> str:
    stream = io.StringIO()
    PrefixedOutput(Console(file=stream, width=20), ["server-0", "worker-10"])("server-0", [line], False)
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
        show("w", ["one"], False)
        show("w", ["two"], False)


@pytest.mark.parametrize(
    ("encoding", "shown"), [("ascii", b"h?llo ?"), ("latin-1", b"h\xe9llo ?"), ("utf-8", "héllo 批".encode())]
)
def test_what_the_encoding_of_the_terminal_lacks_is_shown_as_a_question_mark(encoding: str, shown: bytes) -> None:
    written = io.BytesIO()
    terminal = io.TextIOWrapper(written, encoding=encoding, write_through=True)
    TolerantStream(terminal).write("héllo 批")
    assert written.getvalue() == shown
