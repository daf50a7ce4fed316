"""The scheduler role: `python -m server_hooks.scheduler`. With a cluster file, the arbitrator runs beside it.

The arbitrator is a process of its own, because workers need the scheduler to shut down: a crash must not end both.
"""

from __future__ import annotations

import sys

from dynamix_ps.exit_codes import exit_code_of
from server_hooks.arbitrator_watch import arbitrator_watch
from server_hooks.byteps_entry import serve


def main() -> int:
    """Schedule until all workers have left, with the arbitrator beside it unless mode is off.

    Without DYNAMIX_CONFIG this is a plain BytePS scheduler.
    """
    watch = arbitrator_watch()
    if watch is None:
        serve()
        return 0
    watch.start()
    from server_hooks.monitor import monitored  # heavy, and a plain scheduler does not need it

    try:
        with monitored("scheduler"):
            serve()
    finally:
        watch.stop()
    return 0


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
