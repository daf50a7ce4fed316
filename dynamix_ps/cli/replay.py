"""`dynamix replay`: what another policy would have decided on the windows of a recorded run."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from dynamix_ps.cli.launch import with_overrides
from dynamix_ps.cli.options.policy_name import POLICY_NAMES
from dynamix_ps.config.policies import check_name
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import UsageError
from dynamix_ps.policy.registry import make_policy, policy_of
from dynamix_ps.sim.recorded import read_run
from dynamix_ps.sim.replay import ReplayedWindow, replay


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--policy", "chosen", required=True, help=f"{POLICY_NAMES}, or a policy file (*.npz).")
@click.option(
    "--csv", "csv_file", type=click.Path(path_type=Path, dir_okay=False), help="Write the sizes to this file."
)
def command(run: Path, chosen: str, csv_file: Path | None) -> int:
    """Show what another policy would have decided in the windows of RUN, a run folder or a recording.

    The policy sees each window as it was recorded, with the sizes that were in force. So each answer is a first step,
    and nobody has measured what would have followed. The policy does not learn.

    \b
    Example:
      dynamix replay runs/latest --policy proportional
    """
    recorded = read_run(run)
    config = with_policy(recorded.config, chosen)
    policy = make_policy(config, recorded.n_workers, np.random.default_rng(config.seed))
    answers = tuple(replay(recorded, policy))
    Console().print(_table(recorded.name, Path(chosen).name, answers))
    differing = sum(answer.other != answer.recorded for answer in answers)
    click.echo(f"{Path(chosen).name} differs in {differing} of {len(answers)} windows")
    if csv_file:
        _write(csv_file, answers)
    return 0


def with_policy(config: Config, chosen: str) -> Config:
    """The configuration of the run with another policy, which does not learn.

    Raises:
        UsageError: `chosen` is neither the name or class of a policy nor a policy file.
        PolicyError: the policy file is unusable.
    """
    if chosen.endswith(".npz"):
        return config.model_copy(update={"policy": policy_of(Path(chosen))})
    try:
        check_name(chosen)
    except ValueError as error:
        raise UsageError(f"--policy: {error}, or a policy file (*.npz) (got {chosen!r})") from error
    config = with_overrides(config, None, chosen, None, ())
    if chosen != "ppo":
        return config
    ppo = config.policy.ppo.model_copy(update={"learn": False})
    return config.model_copy(update={"policy": config.policy.model_copy(update={"ppo": ppo})})


def _table(run: str, policy: str, answers: Sequence[ReplayedWindow]) -> Table:
    table = Table(title=f"{run}, and what {policy} would have decided")
    for column in ("window", "in force", "the run went on with", "B", policy, "B", "note"):
        table.add_column(column, justify="left" if column == "note" else "right")
    for answer in answers:
        recorded, other = (_sizes(sizes) for sizes in (answer.recorded, answer.other))
        style = "" if answer.other == answer.recorded else "bold"
        totals = (str(sum(answer.recorded)), str(sum(answer.other)))
        row = (str(answer.window), _sizes(answer.before), recorded, totals[0], other, totals[1], answer.note)
        table.add_row(*row, style=style)
    return table


def _sizes(sizes: Sequence[int]) -> str:
    return " ".join(str(size) for size in sizes)


def _write(file: Path, answers: Sequence[ReplayedWindow]) -> None:
    """One line per window; a column per worker. Raises UsageError if it cannot be written."""
    groups = ("before", "recorded", "other")
    header = [f"{group}_{rank}" for group in groups for rank in range(len(answers[0].before))]
    try:
        with file.open("w", encoding="utf-8", newline="") as out:
            writer = csv.writer(out, lineterminator="\n")
            writer.writerow(["window", *header, "note"])
            for answer in answers:
                sizes = [size for group in groups for size in getattr(answer, group)]
                writer.writerow([answer.window, *sizes, answer.note])
    except OSError as error:
        raise UsageError(f"--csv {file}: {error.strerror or error}; give a file that can be written") from error
