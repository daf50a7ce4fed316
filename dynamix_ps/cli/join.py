"""`dynamix join`: a worker enters a run that goes on."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("rank", type=int)
@click.argument("run", type=click.Path(path_type=Path), default="runs/latest")
def command(rank: int, run: Path) -> int:
    """Start worker RANK of RUN, which has left, is lost, or was not there yet; by default of runs/latest.

    The cluster file must have elastic.min_workers. Ranks beyond its workers need elastic.max_workers. The worker
    prepares while the others train, and enters with their state. Returns when it takes part.

    \b
    Example:
      dynamix join 2
    """
    from dynamix_ps.launch.ask_to_join import ask_to_join
    from dynamix_ps.run_record.run_folder import RunFolder

    click.echo(ask_to_join(RunFolder.open(run), rank))
    return 0
