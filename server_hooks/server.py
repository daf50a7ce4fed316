"""The server role: `python -m server_hooks.server`. With a cluster file it also reports (monitor.py)."""

from __future__ import annotations

import sys

from dynamix_ps.config import variables
from dynamix_ps.exit_codes import exit_code_of
from server_hooks.byteps_entry import serve


def main() -> int:
    """Serve until all workers have left. Without DYNAMIX_CONFIG this is a plain BytePS server."""
    if variables.get(variables.CONFIG) is None:
        serve()
        return 0
    from server_hooks.membership import member  # both are heavy, and a plain server does not need them
    from server_hooks.monitor import monitored

    with member(), monitored("server"):
        serve()
    return 0


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
