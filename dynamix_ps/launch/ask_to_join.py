"""A worker is to enter an elastic job, in an empty place: by a line in the run folder, which the launcher follows.

The worker that leads writes into its own file that another one has entered. Until then the line comes again and again:
the launcher starts nobody whose process has not ended yet, and a newcomer may fail.
"""

from __future__ import annotations

import time

from dynamix_ps.config.load import load_config
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import DynamixError, EnvironmentNotReady, TimedOut, UsageError
from dynamix_ps.launch.ask_to_leave import check_goes_on
from dynamix_ps.run_record.json_lines import JsonLinesTail, Line
from dynamix_ps.run_record.model import ABSENT
from dynamix_ps.run_record.requests import JOIN, request
from dynamix_ps.run_record.run_folder import RunFolder

PATIENCE_S = 600.0
REPEAT_S = 1.0
_LOOK_S = 0.2


def ask_to_join(folder: RunFolder, rank: int, patience_s: float = PATIENCE_S) -> str:
    """Have worker `rank` of the run of this folder started, and wait until it takes part. Returns that in words.

    Raises:
        UsageError: the run takes no worker in, has no such worker, or is over, or the worker is there.
        DynamixError: the run has ended before.
        EnvironmentNotReady: the run folder cannot be written.
        TimedOut: it does not take part within `patience_s`.
    """
    config = load_config(folder.config_file)
    _check(folder, rank, config)
    answers = [JsonLinesTail(folder.worker_file(other)) for other in range(len(config.cluster.workers))]
    ends = JsonLinesTail(folder.events_file)
    for tail in (*answers, ends):
        tail.read()
    deadline_s, ask_s = time.monotonic() + patience_s, 0.0
    while True:
        for line in (line for tail in answers for line in tail.read()):
            if words := _answer(line, rank):
                return words
        if any(line["kind"] == "end" for line in ends.read()):
            raise DynamixError(f"the run ended before worker {rank} took part")
        if (now_s := time.monotonic()) >= ask_s:
            _ask(folder, rank)
            ask_s = now_s + REPEAT_S
        if now_s > deadline_s:
            log = folder.log_file(f"worker-{rank}")
            raise TimedOut(f"worker {rank} does not take part after {patience_s:g} s; its log is {log}")
        time.sleep(_LOOK_S)


def _ask(folder: RunFolder, rank: int) -> None:
    try:
        request(folder, JOIN, rank)
    except OSError as error:
        raise EnvironmentNotReady(f"cannot write {folder.requests_file}: {error.strerror or error}") from error


def _check(folder: RunFolder, rank: int, config: Config) -> None:
    phase = check_goes_on(folder, rank, config)
    if not config.data_plane.has_servers:
        raise UsageError(f"{folder.path}: workers enter over comm: byteps alone, and this run has comm: {config.comm}")
    if phase not in ("left", "lost", ABSENT):
        raise UsageError(f"worker {rank}: it is there ({phase})")


def _answer(line: Line, rank: int) -> str:
    """What a line of a worker's file says about who has entered."""
    if line["kind"] != "workers_entered" or rank not in line["entered"]:
        return ""
    return f"worker {rank} has entered; {line['workers']} workers go on from iteration {line['iteration']:,}"
