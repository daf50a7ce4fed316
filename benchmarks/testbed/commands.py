"""Runs `ip`, `tc` and similar commands."""

from __future__ import annotations

import json
import shlex
import subprocess
from typing import Any

_LIMIT_S = 20.0


class BedError(Exception):
    """A command of the test bed failed. The text has the command and its output."""


def run(*argv: str) -> str:
    """Output of a command. Raises BedError if it fails, is missing, or does not end within 20 s."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except FileNotFoundError:
        raise BedError(f"{argv[0]} is not installed (Debian: apt-get install iproute2 util-linux)") from None
    except subprocess.TimeoutExpired:
        raise BedError(f"{shlex.join(argv)}: did not end within {_LIMIT_S:.0f} s") from None
    if done.returncode:
        said = "; ".join(line.strip() for line in done.stderr.splitlines() if line.strip())
        raise BedError(f"{shlex.join(argv)}: {said or f'exit code {done.returncode}'}")
    return done.stdout


def run_json(*argv: str) -> Any:
    """The JSON that a command printed; an empty list if it printed nothing."""
    return json.loads(run(*argv) or "[]")
