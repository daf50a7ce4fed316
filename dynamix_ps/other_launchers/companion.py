"""`companion KIND`: the process beside the workers of a machine, which outlives them. It is in a session of its own.

`records` is beside rank 0, `mirror` on every other machine. Its environment is that of a role of the run.
"""

from __future__ import annotations

import sys

from dynamix_ps.errors import UsageError
from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.other_launchers.duty import Duty
from dynamix_ps.other_launchers.workers_here import WorkerProcesses


def main() -> int:
    told = sys.stdin.buffer.readline()
    if not told:
        return 0  # the worker is gone already
    duty = Duty.from_json(told)
    workers = WorkerProcesses(duty)
    if sys.argv[1:] == ["records"]:
        from dynamix_ps.other_launchers.records import keep_records

        return keep_records(duty, workers)
    if sys.argv[1:] == ["mirror"]:
        from dynamix_ps.other_launchers.mirror import send_records

        return send_records(duty, workers)
    raise UsageError(f"expected records or mirror, got {' '.join(sys.argv[1:])}")


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
