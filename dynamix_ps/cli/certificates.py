"""`dynamix certificates`: certificates for hosts on which you start the roles yourself."""

from __future__ import annotations

import time
from pathlib import Path

import click

from dynamix_ps.config import variables
from dynamix_ps.config.host_rules import HOST_NAME
from dynamix_ps.errors import EnvironmentNotReady, UsageError
from dynamix_ps.launch.roles.authority import DAY_S, Authority


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    default="certificates",
    show_default=True,
    help="New folder, with a folder for each host.",
)
@click.option("--days", type=click.IntRange(1, 366), default=30, show_default=True, help="How long they are valid.")
@click.argument("addresses", nargs=-1, required=True)
def command(out: Path, days: int, addresses: tuple[str, ...]) -> int:
    """Make certificates for the hosts of one run whose roles you start yourself.

    `dynamix launch` makes its own. ADDRESSES are those under which the hosts reach each other. The authority that
    signs is forgotten at the end, so make those of all hosts at once, and new ones for each run.

    \b
    Example:
      dynamix certificates 10.0.0.1 10.0.0.2
    """
    wrong = [address for address in addresses if not HOST_NAME.fullmatch(address)]
    if wrong:
        raise UsageError(f"{wrong[0]!r} is no name or address of a host, such as node-1 or 10.0.0.1")
    authority = Authority(time.time(), days * DAY_S)
    made = {address: authority.issue(address) for address in addresses}
    try:
        out.mkdir(mode=0o700, parents=True)
        for address, certificates in made.items():
            certificates.save(out / address)
    except FileExistsError as error:
        raise UsageError(f"{out}: is there already; remove it, or choose another folder with -o") from error
    except OSError as error:
        raise EnvironmentNotReady(f"cannot write {error.filename}: {error.strerror}; choose another with -o") from error
    for address in made:
        click.echo(f"written: {out / address}")
    click.echo(f"next:    copy each folder to its host, and name it there as {variables.TLS} for every role")
    return 0
