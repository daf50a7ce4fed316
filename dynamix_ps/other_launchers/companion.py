"""`companion KIND`: the process beside the workers of a machine, which outlives them. It is in a session of its own.

`records` is beside rank 0, `mirror` on every other machine. Its environment is that of a role of the run.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dynamix_ps.config import variables
from dynamix_ps.errors import UsageError
from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.launch.cleanup.holdings import read_record
from dynamix_ps.launch.cleanup.release import release
from dynamix_ps.other_launchers.duty import Duty
from dynamix_ps.other_launchers.servers import ServerProcesses
from dynamix_ps.other_launchers.workers_here import WorkerProcesses
from dynamix_ps.run_record.run_folder import RunFolder


def main() -> int:
    told = sys.stdin.buffer.readline()
    if not told:
        return 0  # the worker is gone already
    duty = Duty.from_json(told)
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
