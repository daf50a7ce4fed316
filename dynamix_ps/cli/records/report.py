"""`dynamix report`: summary, tables, plots and page of any run folder; or two runs side by side."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("other", type=click.Path(path_type=Path), required=False)
@click.option("-c", "--config", "config_file", type=click.Path(path_type=Path), help="Cluster file, if RUN holds none.")
def command(run: Path, other: Path | None, config_file: Path | None) -> int:
    """Write summary, tables, plots and page of RUN, a run folder such as runs/latest.

    RUN may have ended, failed, or still be going on. It may also be one that roles launched by hand with
    dynamix-bpslaunch share as DYNAMIX_RUN_DIR; tables and events are made from the roles' files then.

    With OTHER, a second run folder, compare the two: one page, in the folder of OTHER, has the curves of both. Nothing
    else is written.

    \b
    Examples:
      dynamix report runs/latest
      dynamix report runs/static-20260102T030405Z-ab12 runs/latest
    """
    from dynamix_ps.config.load import load_config
    from dynamix_ps.report.run_report import compare_runs, report_run
    from dynamix_ps.report.summary_text import headline
    from dynamix_ps.run_record.run_folder import RunFolder

    folder = RunFolder.open(run)
    if other is not None:
        if config_file:
            raise click.UsageError("--config goes with one RUN; write the report of each run first, then compare them")
        click.echo(f"page: {compare_runs(folder, RunFolder.open(other))}")
        return 0
    report = report_run(folder, load_config(config_file) if config_file else None)
    for note in report.notes:
        click.echo(f"note: {note}")
    for warning in report.summary["degraded"]:
        click.echo(f"warning: {warning}")
    for line in headline(report.summary):
        click.echo(line)
    click.echo(f"summary: {folder.summary_md}")
    click.echo(f"page: {folder.report_html}")
    return 0
