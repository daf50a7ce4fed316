"""How a command ends: an expected error prints one clear message and sets the exit code; it prints no traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable

from dynamix_ps.errors import (
    INTERRUPTED_EXIT_CODE,
    DynamixError,
    EnvironmentNotReady,
    JobFailed,
    PeerLostError,
    TimedOut,
    UsageError,
)
from dynamix_ps.standard_streams import open_standard_streams

# All exit codes of our commands and what they mean, for `--help` and the documentation.
MEANINGS = {
    0: "done",
    DynamixError.exit_code: "another error; the message says which",
    UsageError.exit_code: "wrong command line or cluster file; the message names file, line and key",
    EnvironmentNotReady.exit_code: (
        "the environment is not ready: compiler, ports, permissions, packages or data; `dynamix doctor` lists them"
    ),
    JobFailed.exit_code: "the job failed: a role died, or training cannot go on",
    TimedOut.exit_code: "a phase took longer than its limit in `timeouts`",
    PeerLostError.exit_code: (
        "exit code of one worker that cannot go on because another worker is gone; the job itself ends with 4"
    ),
    INTERRUPTED_EXIT_CODE: "interrupted by Ctrl-C or a signal",
}


def exit_code_of(command: Callable[[], int]) -> int:
    """Run a command; DynamixError becomes `error: ...` on standard error and its code, Ctrl-C becomes 130."""
    open_standard_streams()
    try:
        return command()
    except DynamixError as error:
        print_error(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        print_error("interrupted")
        return INTERRUPTED_EXIT_CODE


def print_error(message: str) -> None:
    """Print `error: ` and each line of the message on standard error."""
    try:
        print("\n".join(f"error: {line}" for line in message.splitlines()), file=sys.stderr, flush=True)
    except OSError:
        return  # the reader of standard error is gone
