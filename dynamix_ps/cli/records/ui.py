"""`dynamix ui`: the runs of a folder in a browser."""

from __future__ import annotations

import signal
from pathlib import Path

import click


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs"))
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1; without it, any free one.")
def command(folder: Path, port: int) -> int:
    """Show the runs in FOLDER (`runs`) in a browser, until Ctrl-C. The page of a run that goes on updates by itself.

    The address that is printed holds a secret, without which other users of this machine see nothing. Nothing is
    written to FOLDER.

    \b
    Example:
      dynamix ui
    """
    from dynamix_ps.errors import EnvironmentNotReady
    from dynamix_ps.report.ui.site import Site

    ends = {signal.SIGINT, signal.SIGTERM}
    site = Site(folder)
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # for the thread of the server too
    try:
        server, address = site.serve(port)
    except OSError as error:
        raise EnvironmentNotReady(
            f"--port {port}: {error.strerror or error}; leave it out for any free port"
        ) from error
    click.echo(f"{address} (Ctrl-C ends it)")
    signal.sigwait(ends)
    server.close()
    return 0
