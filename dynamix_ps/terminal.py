"""Output to a terminal: a console that survives when its reader goes away, plain lines, a progress bar."""

from __future__ import annotations

import os
import sys
from typing import TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

_ESTIMATE_S = 6 * 3600.0  # the time to go is estimated from the steps of the last six hours: one may take minutes


def make_console() -> Console:
    """The launcher's console on standard output."""
    return Console(file=cast(TextIO, TolerantStream(sys.stdout)), soft_wrap=True, highlight=False)


def print_line(console: Console, text: Text) -> None:
    """Print one line as it is: not wrapped, not coloured by rich."""
    console.print(text, soft_wrap=True, highlight=False)


def printable(line: str) -> Text:
    """A role's line as text: its own colours are kept, nothing in it can steer our terminal."""
    if line.isprintable():
        return Text(line)
    text = Text.from_ansi(line)
    kept = "".join(char if char.isprintable() or char == "\t" else "\N{REPLACEMENT CHARACTER}" for char in text.plain)
    return text if kept == text.plain else Text(kept)


def progress_bar(console: Console, by_hand: bool = False) -> Progress:
    """A bar with count, time so far, time to go, and `task.description`.

    With `by_hand` it moves only when its owner calls `refresh`, and starts no thread.
    """
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    description = TextColumn("{task.description}")
    return Progress(
        *columns,
        description,
        console=console,
        auto_refresh=not by_hand,
        speed_estimate_period=_ESTIMATE_S,
        transient=True,
        disable=not console.is_terminal,
    )


class TolerantStream:
    """Standard output that never ends the run: its reader (`| head`, a closed terminal) may go away, and what its
    encoding does not have is shown as `?`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.encoding = stream.encoding

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except UnicodeEncodeError:
            return self.write(text.encode(self.encoding, "replace").decode(self.encoding))
        except OSError:
            self._discard()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._discard()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def _discard(self) -> None:
        """Discard all further output, also what the interpreter flushes when it exits."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
