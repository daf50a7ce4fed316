"""`dynamix leave`: a worker leaves a run, and the others go on."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("rank", type=int)
@click.argument("run", type=click.Path(path_type=Path), default="runs/latest")
def command(rank: int, run: Path) -> int:
    """Let worker RANK leave RUN, the folder of a run that goes on; by default runs/latest.

    The cluster file must have elastic.min_workers. The others take over what the worker was to do, and it ends with
    exit code 0; no iteration waits or is repeated. Where fewer than min_workers would stay, it stays too, and the
    message says so. SIGTERM or SIGUSR1 to the process of the worker asks the same.

    \b
    Example:
      dynamix leave 2
    """
    from dynamix_ps.launch.job.ask_to_leave import ask_to_leave
    from dynamix_ps.run_record.run_folder import RunFolder

    click.echo(ask_to_leave(RunFolder.open(run), rank))
    return 0
