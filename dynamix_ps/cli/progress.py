"""The progress bar of long commands: on a terminal only, and gone when it is done."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_ESTIMATE_S = 6 * 3600.0  # the time to go is told from steps of so long; a step may take minutes


def progress_bar(console: Console, by_hand: bool = False) -> Progress:
    """A bar with count, time so far, time to go, and what `task.description` says.

    With `by_hand` it moves only when its owner calls `refresh`, and needs no thread.
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
