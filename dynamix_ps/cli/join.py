"""`dynamix join`: a worker or a server enters a run that goes on."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--server", "is_server", is_flag=True, help="Start server NUMBER again, which is lost.")
@click.option("--host", metavar="NAME", default="", help="Start the worker on this host, which has nothing of RUN yet.")
@click.option(
    "--slots",
    metavar="N",
    type=click.IntRange(1, 1024),
    default=1,
    help="Workers for which --host has room. The further ones have no host, or their host is lost.",
)
@click.argument("number", type=int)
@click.argument("run", type=click.Path(path_type=Path), default="runs/latest")
def command(number: int, is_server: bool, host: str, slots: int, run: Path) -> int:
    """Start worker NUMBER of RUN, which has left, is lost, or was not there yet; by default of runs/latest.

    The cluster file must have elastic.min_workers. Workers beyond its own need elastic.max_workers. The worker prepares
    while the others train, and enters with their state. A server gets its part of what is summed. Returns when it takes
    part.

    The host of --host need not be in the cluster file. It is reached by ssh and checked as all hosts are at the start.
    With --slots, further workers start there by calls of their own.

    \b
    Examples:
      dynamix join 2
      dynamix join 2 --host node-3
      dynamix join 3 --host node-4 --slots 2 && dynamix join 4
      dynamix join --server 0
    """
    from dynamix_ps.errors import UsageError
    from dynamix_ps.launch.job.ask_to_join import ask_to_join
    from dynamix_ps.run_record.run_folder import RunFolder

    if is_server and host:
        raise UsageError("--host is for workers: a server starts on the host of the one before it")
    if slots > 1 and not host:
        raise UsageError("--slots is for a host that is new to the job; name it by --host")
    click.echo(ask_to_join(RunFolder.open(run), number, "server" if is_server else "worker", host, slots))
    return 0
