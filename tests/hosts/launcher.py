"""`dynamix launch` for hosts that are reached by commands.

python -m tests.hosts.launcher FILE '{"a": ["nsenter", ...], "b": [...]}' [CHECKPOINT]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dynamix_ps.config.load import load_config
from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.launch.job.run import run_job
from dynamix_ps.launch.targets.command_link import AGENT, AgentCommand, Commands
from dynamix_ps.terminal import make_console


def main() -> int:
    prefixes = json.loads(sys.argv[2])
    resume = Path(sys.argv[3]) if len(sys.argv) > 3 else None
    target = Commands(lambda host: AgentCommand((*prefixes[host], *AGENT)))
    return run_job(load_config(sys.argv[1]), sys.argv, resume, make_console(), target=target)


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
