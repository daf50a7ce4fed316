"""The options by which a command names its hosts, as other launchers have them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from dynamix_ps.config.schema import Host
from dynamix_ps.launch.targets.choice import Allocation, allocation

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


def given_to_unnamed(known: Mapping[str, Host], listed: str | None, hostfile: Path | None) -> Allocation | None:
    """What a batch system has given this job, where neither the cluster file nor the command line names hosts.

    Raises:
        UsageError, EnvironmentNotReady: as `allocation`.
    """
    return None if known or listed is not None or hostfile is not None else allocation(os.environ)
