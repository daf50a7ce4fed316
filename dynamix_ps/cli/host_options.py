"""The options by which a command names its hosts, as other launchers have them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


def host_options(command: _Command) -> _Command:
    """Adds -H, --hostfile, --include and --exclude: the arguments `listed`, `hostfile`, `include`, `exclude`."""
    options = (
        click.option(
            "-H", "listed", metavar="HOSTS", help="Hosts with slots, such as a:2,b:1, instead of cluster.hosts."
        ),
        click.option(
            "--hostfile", type=click.Path(path_type=Path), help="File of hosts, such as `a slots=2`, instead of -H."
        ),
        click.option("--include", metavar="HOSTS", help="Use these hosts alone, or slots of them, such as a@b:0,1."),
        click.option("--exclude", metavar="HOSTS", help="Do not use these hosts, or slots of them."),
    )
    for option in reversed(options):
        command = option(command)
    return command
