"""Asks the launcher of an elastic job, by a line in the run folder, to let a worker leave.

The launcher passes the request on to the coordinator, and the coordinator to the worker. The worker votes, and writes
the result into its own file.
"""

from __future__ import annotations

import time

from dynamix_ps.config.load import load_config
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import DynamixError, TimedOut, UsageError
from dynamix_ps.report.summary import read_told, state_of
from dynamix_ps.run_record.json_lines import JsonLinesTail, Line
from dynamix_ps.run_record.model import ABSENT
from dynamix_ps.run_record.requests import LEAVE, request
from dynamix_ps.run_record.run_folder import RunFolder
from dynamix_ps.run_record.run_state import RunState

PATIENCE_S = 60.0
_LOOK_S = 0.2


def ask_to_leave(folder: RunFolder, rank: int, patience_s: float = PATIENCE_S) -> str:
    """Ask worker `rank` to leave the run of this folder, and wait for the answer. Returns the answer in words.

    Raises:
        UsageError: the run cannot go on without a worker, has no such worker, or is over.
        DynamixError: the worker stays; the message says why.
        EnvironmentNotReady: the run folder cannot be written.
        TimedOut: there is no answer within `patience_s`.
    """
    phase = phase_of(rank, check_goes_on(folder, load_config(folder.config_file)))
    if phase in ("left", "lost", "finished", ABSENT):
        raise UsageError(f"worker {rank}: it is not there{' any more' * (phase != ABSENT)} ({phase})")
    answers, ends = JsonLinesTail(folder.worker_file(rank)), JsonLinesTail(folder.events_file)
    answers.read()
    ends.read()
    request(folder, LEAVE, rank)
    deadline_s = time.monotonic() + patience_s
    while True:
        for line in answers.read():
            if words := _answer(line):
                return words
        if any(line["kind"] == "end" for line in ends.read()):
            raise DynamixError(f"the run ended before worker {rank} left")
        if time.monotonic() > deadline_s:
            raise TimedOut(
                f"worker {rank} has not answered within {patience_s:g} s; it answers in its next iterations, once all "
                f"have begun to train, if the launcher of {folder.path} runs"
            )
        time.sleep(_LOOK_S)


def check_goes_on(folder: RunFolder, config: Config) -> RunState:
    """The state of the run, from its files. Raises UsageError unless the run is elastic and goes on."""
    if not config.is_elastic:
        raise UsageError(
            f"{folder.path}: the others do not go on without a worker in this run; set elastic.min_workers in its "
            "cluster file"
        )
    told = read_told(folder)
    if any(line["kind"] == "end" for _, file, line in told if file == folder.events_file):
        raise UsageError(f"{folder.path}: the run is over")
    return state_of(told, len(config.cluster.workers), config.later)


def phase_of(rank: int, state: RunState) -> str:
    """Raises UsageError if there is no such worker."""
    if rank not in state.workers:
        last = len(state.workers) - 1
        raise UsageError(f"worker {rank}: the run has workers 0 to {last}; elastic.max_workers allows more of them")
    return state.workers[rank].phase


def _answer(line: Line) -> str:
    """The answer in a line of the worker's file; empty for other lines. Raises DynamixError if the worker stays."""
    if line["kind"] == "leave_refused":
        raise DynamixError(str(line.get("why")))
    if line["kind"] == "finished":
        raise DynamixError(f"worker {line.get('rank')} has finished its training, as all have")
    if line["kind"] != "worker_left":
        return ""
    iteration = line.get("iteration", 0)
    return f"worker {line.get('rank')} has left; {line.get('workers')} workers go on from iteration {iteration:,}"
