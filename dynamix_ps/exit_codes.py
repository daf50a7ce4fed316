"""How a command ends: an error on purpose is one clear message and its exit code, never a traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable

from dynamix_ps.errors import INTERRUPTED_EXIT_CODE, DynamixError


def exit_code_of(command: Callable[[], int]) -> int:
    """Run a command; DynamixError becomes `error: ...` on standard error and its code, Ctrl-C becomes 130."""
    try:
        return command()
    except DynamixError as error:
        print_error(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        print_error("interrupted")
        return INTERRUPTED_EXIT_CODE


def print_error(message: str) -> None:
    """`error: ` and the message, one line or several, on standard error."""
    try:
        print("\n".join(f"error: {line}" for line in message.splitlines()), file=sys.stderr, flush=True)
    except OSError:
        return  # nobody reads it any more
