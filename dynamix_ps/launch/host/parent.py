"""A process that ends when its parent dies. As a program: it ties itself to its parent, and becomes another command."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_PR_SET_PDEATHSIG = 1
_NOT_STARTED = 127  # as shells have it
_libc = ctypes.CDLL(None, use_errno=True)


def tie_to_parent(parent_pid: int, signal_number: int = signal.SIGKILL) -> None:
    """Let the kernel send this process a signal when its parent dies. The setting survives exec.

    If the parent is gone already, the signal comes at once.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal_number), 0, 0, 0)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal_number)


def tied(argv: Sequence[str], signal_number: int = signal.SIGKILL, group: Path | None = None) -> tuple[str, ...]:
    """The command line of a child of this process that gets the signal when this process dies.

    `subprocess` would run code of ours between fork and exec, which may hang where this process has threads.

    Args:
        group: the control group in which the command runs.

    Raises:
        FileNotFoundError: there is no such command.
    """
    import shutil  # not in the child, which is to start fast

    if shutil.which(argv[0]) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
    file = os.path.abspath(__file__)
    return (sys.executable, "-I", "-S", file, f"{os.getpid()}", f"{int(signal_number)}", f"{group or ''}", *argv)


def _main(parent: str, signal_number: str, group: str, *argv: str) -> str:
    """Become the command. Returns why not."""
    tie_to_parent(int(parent), int(signal_number))
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and the command would
        signal.signal(number, signal.SIG_DFL)
    try:
        if group:
            with open(f"{group}/cgroup.procs", "w") as processes:
                processes.write(f"{os.getpid()}")
        os.execvp(argv[0], argv)
    except OSError as error:
        return f"error: {argv[0]} cannot be started: {error}"


if __name__ == "__main__":
    print(_main(*sys.argv[1:]), file=sys.stderr)
    sys.exit(_NOT_STARTED)
