"""The report of a run folder: tables, plots, summary and page.

The launcher ends with it; `dynamix report` makes it anew.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dynamix_ps import own_process
from dynamix_ps.config.load import load_config
from dynamix_ps.config.schema import BatchBounds, Cluster, Config, PolicySection, WorkerSection
from dynamix_ps.errors import PEER_GONE, EnvironmentNotReady, JobFailed, UsageError
from dynamix_ps.report.page.run_page import write_page
from dynamix_ps.report.page.two_runs import ReadRun, two_runs_page
from dynamix_ps.report.plots.history import history_of
from dynamix_ps.report.plots.plots import draw_plots
from dynamix_ps.report.recorder import Recorder
from dynamix_ps.report.summary import Outcome, read_told, state_of, summary_of, write_summary
from dynamix_ps.run_record.json_lines import Line
from dynamix_ps.run_record.model import ABSENT, WorkerState
from dynamix_ps.run_record.role_files import RoleLine
from dynamix_ps.run_record.run_folder import RunFolder

BY_HAND = "not recorded: the roles were launched by hand"


def write_report(folder: RunFolder, config: Config, outcome: Outcome, plots: bool = True) -> dict[str, Any]:
    """Draw the plots, write summary and page of a folder whose tables are there; returns what summary.json holds.

    Raises OSError if summary or page cannot be written.
    """
    if plots:
        draw_plots(folder, config)
    summary = write_summary(folder, config, outcome)
    return summary if write_page(folder, config, summary) else write_summary(folder, config, outcome)


def report_afterwards(folder: RunFolder) -> subprocess.Popen[bytes]:
    """Start a process that draws the plots of a run that has ended, and names them in its summary. It says nothing."""
    return subprocess.Popen(
        own_process.command("dynamix_ps", "report", str(folder.path)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # so that it outlives this one
    )


@dataclass(frozen=True, slots=True)
class Report:
    """What `report_run` made: the summary, and what the user should know about how it was made."""

    summary: dict[str, Any]
    notes: tuple[str, ...]


def report_run(folder: RunFolder, given: Config | None = None) -> Report:
    """Make the report of any run folder: of a run that ended, failed, or still goes on, launched by us or by hand.

    A launcher records tables and events while it runs; they are left as they are. Where there was no launcher, they
    are made from the roles' own files.

    Args:
        given: the cluster file, for a folder in which there is none.

    Raises:
        UsageError: no worker has written anything, or a cluster file is given although the folder has one.
        EnvironmentNotReady: the folder cannot be written.
    """
    launched = folder.manifest_file.exists()
    told = read_told(folder)
    config, notes = _config(folder, told, given)
    try:
        if not launched:
            _record(folder, config)
        return Report(write_report(folder, config, _outcome(folder, told, config)), tuple(notes))
    except OSError as error:
        raise EnvironmentNotReady(
            f"cannot write {error.filename or folder.path}: {error.strerror or error}; "
            "make the run folder writable, or copy it to where you may write"
        ) from error


def compare_runs(first: RunFolder, second: RunFolder) -> Path:
    """Write a page with both runs into the folder of the second; returns its path.

    Raises:
        UsageError: they are one run, or count their batch sizes in different units, or one has nothing to report.
        EnvironmentNotReady: the page cannot be written.
    """
    if first.path == second.path:
        raise UsageError(f"{first.path}: a run cannot be compared with itself; give two run folders")
    runs = [read_run(folder, read_told(folder)) for folder in (first, second)]
    units = [run.config.batch.counted for run in runs]
    if units[0] != units[1]:
        raise UsageError(
            f"{first.path} has its batch sizes in {units[0]}, {second.path} in {units[1]}; give two runs of one unit"
        )
    page = second.path / f"compared-with-{first.path.name}.html"
    try:
        page.write_text(two_runs_page(*runs), encoding="utf-8")
    except OSError as error:
        raise EnvironmentNotReady(
            f"cannot write {page}: {error.strerror or error}; make {second.path} writable"
        ) from error
    return page


def read_run(folder: RunFolder, told: Sequence[RoleLine]) -> ReadRun:
    """A run as these lines of its folder tell it; writes nothing. Raises UsageError when no worker has begun."""
    config, _ = _config(folder, told)
    summary = summary_of(folder, told, config, _outcome(folder, told, config))
    return ReadRun(summary, config, history_of(folder, config, told))


def _config(folder: RunFolder, told: Iterable[RoleLine], given: Config | None = None) -> tuple[Config, list[str]]:
    """The cluster file of the run; one that is given is kept in the folder."""
    if folder.config_file.exists():
        if given is not None:
            raise UsageError(f"{folder.path} has its own cluster file, {folder.config_file.name}; leave out --config")
        return load_config(folder.config_file), []
    if given is not None:
        folder.write_config(given)
        return given, [f"the cluster file is kept as {folder.config_file}"]
    return _config_as_told(folder, told), [
        f"{folder.path} holds no cluster file: workers, data plane and policy are those that the roles wrote; "
        "give the cluster file with --config for speeds and target accuracy"
    ]


def _config_as_told(folder: RunFolder, told: Iterable[RoleLine]) -> Config:
    """The configuration as far as the first lines of the roles tell it. Raises UsageError when no worker wrote one."""
    first: dict[int, Line] = {}
    policy: str | None = None
    kinds: set[str] = set()
    for source, _, line in told:
        kinds.add(line["kind"])
        if line["kind"] == "started" and source == "arbitrator":
            policy = line.get("policy")
        elif line["kind"] == "started" and {"rank", "batch_size", "comm"} <= line.keys() and line["rank"] >= 0:
            first.setdefault(line["rank"], line)
    if not first:
        raise UsageError(
            f"{folder.path}: no worker has begun to train, so there is nothing to report; "
            f"look into {folder.logs_dir}, or give the cluster file with --config"
        )
    sizes = [first[rank]["batch_size"] if rank in first else 1 for rank in range(max(first) + 1)]
    mode = "observe" if "observed" in kinds else "adapt" if "window" in kinds else "off"  # `off` records no windows
    settings: dict[str, Any] = {"comm": next(iter(first.values()))["comm"], "mode": mode}
    # Without an arbitrator, sizes stay. The name is taken as it is: it may be of a policy that is not installed here.
    settings["policy"] = PolicySection.model_construct(name=policy or "static")
    try:
        settings["cluster"] = Cluster(workers=tuple(WorkerSection(batch=max(size, 1)) for size in sizes))
        return Config(name=folder.path.name[:64] or "run", batch=BatchBounds(min=0), **settings)
    except ValidationError as error:
        raise UsageError(
            f"{folder.path}: the first lines of the workers are damaged: {error}; give the cluster file with --config"
        ) from error


def _record(folder: RunFolder, config: Config) -> None:
    """Make tables, events and TensorBoard curves from the roles' files, in place of those of an earlier report."""
    for file in (folder.windows_csv, folder.plans_csv, folder.links_csv, folder.servers_csv, folder.events_file):
        file.unlink(missing_ok=True)
    shutil.rmtree(folder.tensorboard_dir, ignore_errors=True)
    Recorder(folder, config).close()


def _outcome(folder: RunFolder, told: Sequence[RoleLine], config: Config) -> Outcome:
    """How the run ended: by the launcher's last event, else by what the workers wrote."""
    own = {line["kind"]: line for source, _, line in told if source == "launcher"}
    launched = folder.manifest_file.exists()
    heterogeneity = str(own.get("launch", {}).get("emulation") or (BY_HAND if not launched else "not recorded"))
    end = own.get("end", {})
    if {"exit_code", "reason"} <= end.keys():
        return Outcome(end["exit_code"], end["reason"], heterogeneity, tuple(map(str, end.get("notes") or ())))
    newest_s = max((line["time_s"] for _, _, line in told if line.get("time_s") is not None), default=None)
    workers = state_of(told, len(config.cluster.workers), config.later).workers
    silent_s = None if newest_s is None else max(time.time() - newest_s, 0.0)
    return Outcome(*_ended(workers, silent_s, config.timeouts.stall_fail_s), heterogeneity)


def ended_by_workers(workers: Mapping[int, WorkerState]) -> tuple[int, str] | None:
    """(exit code, reason) where a worker has written that it failed, or all that they finished."""
    failed = [worker for worker in workers.values() if worker.error]
    if failed:
        first = min(failed, key=lambda worker: PEER_GONE in str(worker.error))  # the others follow
        return JobFailed.exit_code, f"worker-{first.rank} failed: {first.error}"
    if all(worker.train_s is not None or worker.phase in ("lost", "left", ABSENT) for worker in workers.values()):
        return 0, "all workers finished"
    return None


def _ended(workers: Mapping[int, WorkerState], silent_s: float | None, limit_s: float) -> tuple[int | None, str]:
    """(exit code, reason) from the workers' own lines; no exit code where the run has no end."""
    if (ended := ended_by_workers(workers)) is not None:
        return ended
    if silent_s is None:
        return None, "no role has written anything yet"
    ago = f"the newest line of its roles is {_span(silent_s)} old"
    if silent_s <= limit_s:
        return None, f"the run still goes on ({ago}); this is what is known so far"
    return None, f"the run has no end: it was stopped or killed ({ago})"


def _span(seconds: float) -> str:
    """`42 s`, `7 min`, `3 h` or `2 days`."""
    for unit_s, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} s"
