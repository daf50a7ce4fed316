"""`dynamix runs`: the runs of a folder in a table."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from dynamix_ps.report.run_list import HEAD, ListedRun, runs_in
from dynamix_ps.terminal import printable

_WIDTH = 200  # columns where the output is no terminal


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs"))
def command(folder: Path) -> int:
    """List the runs in FOLDER (`runs`), the newest first: policy, workers, samples/s, gain, end.

    The samples/s are the mean of a run; of one that goes on, those of its newest windows. The gain is that of the
    summary: samples/s at the end over those of the first sizes.

    \b
    Example:
      dynamix runs
    """
    runs = runs_in(folder)
    if not runs:
        click.echo(f"no runs in {folder}")
        return 0
    Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False).print(_table(runs))
    return 0


def _table(runs: list[ListedRun]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in HEAD:
        is_text = name in ("run", "policy", "end")
        table.add_column(name, justify="left" if is_text else "right", no_wrap=True, overflow="ellipsis")
    for run in runs:
        table.add_row(*map(printable, run.cells))
    return table
