"""The processes of one worker, one per local GPU: when one fails, all end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from types import FrameType

from dynamix_ps.launch.host.parent import tie_to_parent

_GRACE_S = 5.0


def run_local_group(size: int, become: Callable[[int], int]) -> int:
    """Fork `size` processes, call `become(local_rank)` in each, and wait for all.

    Returns 0, or the exit code of the first process that fails (128 + n for signal n); its failure ends the others.
    Passes signals on to them. Call it while this process has one thread.
    """
    parent = os.getpid()
    running: set[int] = set()
    for local_rank in range(size):
        pid = os.fork()
        if pid == 0:
            tie_to_parent(parent)
            os._exit(become(local_rank))
        running.add(pid)

    def pass_on(number: int, frame: FrameType | None) -> None:
        _signal_all(running, number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    while running:
        pid, status = os.wait()
        running.discard(pid)
        code = os.waitstatus_to_exitcode(status)
        if code != 0:
            _end(running)
            return code if code > 0 else 128 - code
    return 0


def _end(running: set[int]) -> None:
    _signal_all(running, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_S
    while running:
        if time.monotonic() >= deadline:
            _signal_all(running, signal.SIGKILL)
        for pid in list(running):
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                running.discard(pid)
        time.sleep(0.02)


def _signal_all(pids: set[int], number: int) -> None:
    for pid in pids:  # no pid is reused: an ended child stays a zombie until we wait for it
        os.kill(pid, number)
