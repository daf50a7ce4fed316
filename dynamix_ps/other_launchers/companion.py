"""`companion KIND`: the process beside the workers of a machine, which outlives them. It is in a session of its own.

`records` is beside rank 0, `mirror` on every other machine. Its environment is that of a role of the run.

The companion loads what it needs, and starts the arbitrator, when the first iteration is over: before that, workers
begin to train on the same cores. Where it has servers to start, it does not wait.
"""

from __future__ import annotations

import json
import select
import sys
import time
from pathlib import Path

from dynamix_ps.errors import UsageError
from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.run_record.iteration_mark import read_mark

_LOOK_S = 0.1


def main() -> int:
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as told:  # what follows the line stays in the pipe
        line = told.readline()
    if not line:
        return 0  # the worker is gone already
    duty = json.loads(line)
    if not duty["roles"]:
        _await_first_iteration(Path(duty["mark"]), duty["patience_s"])
    return _do(line)


def _await_first_iteration(mark: Path, patience_s: float) -> None:
    """Sleep until the worker has completed one, has something to say, or is gone; no longer than `patience_s`."""
    latest_s = time.monotonic() + patience_s
    while not read_mark(mark) and time.monotonic() < latest_s:
        if select.select([sys.stdin], [], [], _LOOK_S)[0]:
            return


def _do(line: bytes) -> int:
    """What `line` says."""
    from dynamix_ps.config import variables
    from dynamix_ps.launch.cleanup.holdings import read_record
    from dynamix_ps.launch.cleanup.release import release
    from dynamix_ps.other_launchers.duty import Duty
    from dynamix_ps.other_launchers.servers import ServerProcesses
    from dynamix_ps.other_launchers.workers_here import WorkerProcesses
    from dynamix_ps.run_record.run_folder import RunFolder

    duty = Duty.from_json(line)
    workers = WorkerProcesses(duty)
    servers = ServerProcesses(duty.roles, RunFolder(Path(variables.get(variables.RUN_DIR) or "")), workers)
    try:
        if sys.argv[1:] == ["records"]:
            from dynamix_ps.other_launchers.records import keep_records

            return keep_records(duty, workers, servers)
        if sys.argv[1:] == ["mirror"]:
            from dynamix_ps.other_launchers.mirror import send_records

            return send_records(duty, workers, servers)
        raise UsageError(f"expected records or mirror, got {' '.join(sys.argv[1:])}")
    finally:
        servers.end()
        if (holdings := read_record(Path(duty.scratch))) is not None:
            release(holdings)


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
