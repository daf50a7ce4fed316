"""The companion beside rank 0: it runs the arbitrator, keeps the records of all machines, and writes the summary."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from dynamix_ps.config import variables
from dynamix_ps.config.load import load_config
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import INTERRUPTED_EXIT_CODE, PEER_GONE, JobFailed
from dynamix_ps.launch.job.watch_events import WatchEvents
from dynamix_ps.launch.roles.plan import job_roles
from dynamix_ps.metrics.network.monitor import IN_WORDS, NO_PROBE, WHAT
from dynamix_ps.metrics.network.probe.protocol import DEFAULT_SOCKET
from dynamix_ps.other_launchers.attempts import LAUNCH
from dynamix_ps.other_launchers.duty import Duty
from dynamix_ps.other_launchers.servers import ServerProcesses
from dynamix_ps.other_launchers.workers_here import WorkerProcesses
from dynamix_ps.report.recorder import Recorder
from dynamix_ps.report.run_report import ended_by_workers, write_report
from dynamix_ps.report.summary import Outcome
from dynamix_ps.report.summary_text import headline
from dynamix_ps.run_record.manifest import write_manifest
from dynamix_ps.run_record.model import STOPPED, WorkerState
from dynamix_ps.run_record.run_folder import RunFolder
from server_hooks.arbitrator_watch import arbitrator_watch

if TYPE_CHECKING:
    from dynamix_ps.other_launchers.receiving import Receiving

_LATE_S = 10.0  # for records of other machines, after the workers here have ended
NOT_PROBED = f"eBPF: no probe at {DEFAULT_SOCKET}, and other launchers start none; using {IN_WORDS['sockdiag']}"
UNENCRYPTED = (
    "calls between hosts go unencrypted: other launchers make no certificates; to encrypt them, set DYNAMIX_TLS on "
    "each host to its folder from `dynamix certificates`"
)
NOT_EMULATED = "none: the machines are as they are"


def keep_records(duty: Duty, workers: WorkerProcesses, servers: ServerProcesses) -> int:
    """Do so until all workers have ended. Returns an exit code.

    Raises DynamixError: the cluster file is wrong.
    """
    folder = RunFolder(Path(variables.get(variables.RUN_DIR) or ""))
    config = load_config(folder.config_file)
    log = _log_apart(folder)
    recorder = Recorder(folder, config)
    recorder.event(LAUNCH, roles=[role.name for role in job_roles(config)], **duty.launch)
    if duty.exposed:
        recorder.event("degraded", what="encryption", detail=UNENCRYPTED)
    if config.metrics.network == "auto" and config.mode != "off" and variables.get(variables.PROBE) == NO_PROBE:
        recorder.event("degraded", what=WHAT, detail=NOT_PROBED)
    receiving = _receiving(duty, folder)
    with nullcontext() if duty.roles else _arbitrator():  # the scheduler has it beside it
        write_manifest(folder, config, duty.argv)
        problem = _record(recorder, workers, servers, receiving, config)
    servers.end()
    notes = [one for one in (problem, receiving.problem if receiving else None) if one]
    if receiving is not None:
        receiving.close()
    _conclude(recorder, config, servers.lost, notes, log)
    return 0


def _log_apart(folder: RunFolder) -> int:
    """From now on what this process and the arbitrator print goes to a log. Returns where the user reads."""
    terminal = os.dup(2)
    log = os.open(folder.log_file("arbitrator"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    return terminal


def _receiving(duty: Duty, folder: RunFolder) -> Receiving | None:
    if duty.listener is None:
        return None
    from dynamix_ps.other_launchers.receiving import Receiving

    return Receiving(duty.listener, duty.away, folder.path, variables.get(variables.TOKEN) or "")


@contextmanager
def _arbitrator() -> Iterator[None]:
    """The arbitrator runs within it, if the job has one."""
    watch = arbitrator_watch()
    if watch is not None:
        watch.start()
    try:
        yield
    finally:
        if watch is not None:
            watch.stop()


def _record(
    recorder: Recorder, workers: WorkerProcesses, servers: ServerProcesses, receiving: Receiving | None, config: Config
) -> str | None:
    """Take in the records until all workers have ended. Returns why part of them is lost."""
    watched, problem = WatchEvents(recorder), None
    ended_s: float | None = None  # since when the worker that has started this process is gone, or done
    while True:
        workers.look()
        if receiving is not None:
            receiving.look()
        servers.look()
        try:
            recorder.poll()
            watched.record()
        except OSError as error:
            problem = f"recording: {error.strerror or error}; part of the record is lost"
        if not (workers.starter_is_done or workers.starter_is_gone):
            continue
        now_s = time.monotonic()
        ended_s = ended_s or now_s
        # A worker that has finished may still do what the script wants of it alone.
        running = workers.others if not workers.starter_is_done else set(_unfinished(recorder)) & workers.others
        away = receiving is not None and not receiving.is_over
        patience_s = config.timeouts.stall_fail_s if running else _LATE_S
        if (not running and not away) or now_s - ended_s > patience_s:
            return problem


def _unfinished(recorder: Recorder) -> Iterator[int]:
    return (worker.rank for worker in recorder.state.workers.values() if worker.train_s is None)


def _ending(workers: Mapping[int, WorkerState], lost: str) -> tuple[int, str]:
    """(exit code, reason) of the job: what its workers have written, or that some of them have written no end.

    `lost`: a server that ended before them, and how.
    """
    ended = ended_by_workers(workers)
    if lost and (ended is None or ended[0]):
        return JobFailed.exit_code, lost
    silent = [worker for worker in workers.values() if worker.train_s is None and not worker.error]
    if ended is not None and not (silent and PEER_GONE in ended[1]):
        return ended
    if all(worker.phase == STOPPED for worker in silent):
        return INTERRUPTED_EXIT_CODE, "the workers were told to end by SIGTERM"
    names = ", ".join(f"worker-{worker.rank}" for worker in silent if worker.phase != STOPPED)
    return (
        JobFailed.exit_code,
        f"{names} ended before the training was over: by a signal, or by an error before it began",
    )


def _conclude(recorder: Recorder, config: Config, lost: str, notes: list[str], terminal: int) -> None:
    """Record the end, write the report, and print the result."""
    folder, state = recorder.folder, recorder.state
    folder.remove_partial_checkpoints()
    recorder.poll()
    code, reason = _ending(state.workers, lost)
    plots = code == 0 and variables.get(variables.PLOTS) != "no"
    try:
        recorder.event("end", exit_code=code, reason=reason, notes=notes)
        recorder.close()
        summary = write_report(folder, config, Outcome(code, reason, NOT_EMULATED, tuple(notes)), plots)
    except OSError as error:
        lines = [f"warning: the summary could not be written: {error}"]
    else:
        lines = [f"warning: {note}" for note in summary["degraded"]]
        lines += [*headline(summary), f"summary: {folder.summary_md}"]
        if not plots:
            lines.append(f"for plots, run: dynamix report {folder.path}")
    try:
        os.write(terminal, "".join(f"{line}\n" for line in lines).encode())
    except OSError:
        print("nobody reads the result any more", file=sys.stderr)
