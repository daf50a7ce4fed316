"""`dynamix report`: summary, tables and plots of any run folder."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("run", type=click.Path(path_type=Path))
@click.option("-c", "--config", "config_file", type=click.Path(path_type=Path), help="Cluster file, if RUN holds none.")
def command(run: Path, config_file: Path | None) -> int:
    """Write summary, tables and plots of RUN, a run folder such as runs/latest.

    RUN may have ended, failed, or still be going on. It may also be one that roles launched by hand with
    dynamix-bpslaunch share as DYNAMIX_RUN_DIR; tables and events are made from the roles' files then.

    \b
    Example:
      dynamix report runs/latest
    """
    from dynamix_ps.config.load import load_config
    from dynamix_ps.report.run_report import report_run
    from dynamix_ps.report.summary_text import headline
    from dynamix_ps.run_record.run_folder import RunFolder

    folder = RunFolder.open(run)
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
