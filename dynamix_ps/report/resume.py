"""Where a run went on from, what it did itself and what all runs did, and how another one goes on from its end."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dynamix_ps.bounded_json import value_in
from dynamix_ps.config import variables
from dynamix_ps.run_record.json_lines import UNUSABLE
from dynamix_ps.run_record.run_folder import RunFolder
from dynamix_ps.run_record.run_state import RunState

OPTION = "--resume"


def resumed_fields(state: RunState) -> dict[str, Any] | None:
    """For summary.json: the checkpoint that the run went on from, and its part of the training; null without one."""
    begin = state.resumption.begin
    if begin is None:
        return None
    samples = sum(worker.samples for worker in state.workers.values())
    return {
        "checkpoint": begin.checkpoint,
        "iteration": begin.iteration,
        "epoch": begin.epoch,
        "iterations_of_this_run": max(state.workers.iteration - begin.iteration, 0),
        "samples_of_all_runs": None if begin.samples is None else begin.samples + samples,
    }


def checkpoint_fields(folder: RunFolder, state: RunState) -> dict[str, Any]:
    """For summary.json: the newest checkpoint of the run, else the one that it went on from, and how to go on from it.

    The command is null where the roles were launched by hand, or by something else than `dynamix launch`.
    """
    begin, own = state.resumption.begin, _file(state.resumption.saved)
    found = [file for file in (folder.newest_checkpoint(), own) if file is not None]
    newest = max(found, key=lambda file: file.stat().st_mtime, default=_file(begin.checkpoint if begin else None))
    command = None if newest is None else _command(folder, newest)
    return {"checkpoint": newest and str(newest), "resume_command": command}


def _file(name: str | None) -> Path | None:
    try:
        return Path(name) if name is not None and Path(name).is_file() else None
    except OSError:  # such as a name that is too long
        return None


def _command(folder: RunFolder, checkpoint: Path) -> str | None:
    try:
        manifest = value_in(folder.manifest_file.read_bytes())
        return resume_command(manifest["argv"], manifest["command"], checkpoint)
    except (OSError, *UNUSABLE):
        return None


def resume_command(argv: Sequence[str], command: Sequence[str], checkpoint: Path) -> str | None:
    """The command line `argv` of a launcher, with this checkpoint; none where it is not `dynamix launch`.

    `command`: what its workers ran, at the end of `argv` unless the cluster file said it.
    """
    if list(argv[1:2]) != ["launch"]:
        return None
    end = len(argv) - len(command) if list(argv[-len(command) :]) == list(command) else len(argv)
    options = list(argv[2:end])
    if OPTION in options:
        at = options.index(OPTION)
        del options[at : at + 2]
    options = [option for option in options if not option.startswith(f"{OPTION}=")]
    return shlex.join(["dynamix", "launch", OPTION, str(checkpoint), *options, *argv[end:]])


def begin_text(summary: dict[str, Any]) -> str:
    """`went on from runs/latest/checkpoints/last.pt, after 60 iterations`; empty where the run began anew."""
    resumed = summary["resumed"]
    if resumed is None:
        return ""
    file = resumed["checkpoint"] or "a checkpoint of the script's own"
    if summary["exit_code"] == 0 and not resumed["iterations_of_this_run"]:
        return f"nothing was left to train: {file} has {resumed['iteration']:,} iterations, the script asks for no more"
    return f"went on from {file}, after {resumed['iteration']:,} iterations"


def counts(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Rows of a table: iterations, samples and training time, of all runs and of this one."""
    resumed, counted = summary["resumed"], summary["counted"]
    yield "iterations", f"{summary['iterations']:,}{of_this_run(summary)}"
    if resumed is None:
        yield counted, f"{summary['samples']:,}"
    elif (in_all := resumed["samples_of_all_runs"]) is None:
        yield f"{counted} of this run", f"{summary['samples']:,}"
    else:
        yield counted, f"{in_all:,}, {summary['samples']:,} of them in this run"
    trained = "-" if summary["train_s"] is None else f"{summary['train_s']:,.1f} s"
    yield "training time" + (" of this run" if resumed else ""), trained


def of_this_run(summary: dict[str, Any]) -> str:
    """What stands behind the iterations of all runs: `, 30 of them in this run`; empty where there is no other run."""
    resumed = summary["resumed"]
    return f", {resumed['iterations_of_this_run']:,} of them in this run" if resumed else ""


def how_to_go_on(summary: dict[str, Any], quote: str = "") -> str:
    """How to go on from the newest checkpoint; empty where the run has ended in order, or there is no checkpoint.

    `quote`: around what is to be typed.
    """
    if summary["exit_code"] == 0 or summary["checkpoint"] is None:
        return ""
    if command := summary["resume_command"]:
        return f"{quote}{command}{quote}"
    return f"start every worker with {quote}{variables.RESUME}={shlex.quote(summary['checkpoint'])}{quote}"
