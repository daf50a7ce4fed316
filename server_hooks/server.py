"""The server role: `python -m server_hooks.server`."""

from __future__ import annotations

import sys

from dynamix_ps.cli.report import exit_code_of
from server_hooks.byteps_entry import serve


def main() -> int:
    """Serve until all workers have left."""
    serve()
    return 0


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
