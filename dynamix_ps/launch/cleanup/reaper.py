"""A small process that cleans up after its owner, however the owner ends.

The owner holds the writing end of the reaper's standard input, and writes there what the run holds, because every user
can read the arguments of a process. When the owner ends, even by `kill -9`, the pipe closes, and the reaper releases
what the run held.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys

from dynamix_ps import own_process
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.cleanup.holdings import Holdings
from dynamix_ps.launch.cleanup.release import release
from dynamix_ps.launch.messages.event_log import EventLog

WHAT = "cleanup after a killed launcher"
_MOST_RESTARTS = 3  # whoever kills it more often does so on purpose


class Reaper:
    """The reaper of a launcher. The launcher starts it again when it was killed."""

    def __init__(self, holdings: Holdings, events: EventLog) -> None:
        self._holdings = holdings
        self._events = events
        self._restarts_left = _MOST_RESTARTS
        self._writing = start_reaper(holdings)

    def check(self) -> None:
        """Start the reaper again if it is gone, and record that. Call this regularly."""
        if self._restarts_left < 0 or not _is_gone(self._writing):
            return
        self._restarts_left -= 1
        if self._restarts_left < 0:
            detail = "the reaper was killed too often and is not started again; the next launch cleans up in its place"
            self._events.event("degraded", what=WHAT, detail=detail)
            return
        self._events.event("reaper_restarted", detail="the reaper was killed; it was started again")
        os.close(self._writing)
        self._writing = start_reaper(self._holdings)

    def close(self) -> None:
        """Let the reaper clean up and end."""
        os.close(self._writing)


def _is_gone(writing: int) -> bool:
    """Whether no process holds the reading end of a pipe."""
    poll = select.poll()
    poll.register(writing, 0)
    return bool(poll.poll(0))


def start_reaper(holdings: Holdings, survives_exec: bool = False) -> int:
    """Start the reaper. Returns a file descriptor: when it is closed, the reaper cleans up and ends.

    With `survives_exec` the descriptor stays open when this process executes another program.

    Raises:
        EnvironmentNotReady: the reaper does not start.
    """
    reading, writing = os.pipe()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DYNAMIX_")}
    reaper = subprocess.Popen(
        own_process.command("dynamix_ps.launch.cleanup.reaper", holdings.run_id),  # the run id is for those who read ps
        stdin=reading,
        stdout=subprocess.DEVNULL,
        env=environ,
        start_new_session=True,
    )
    os.close(reading)
    try:
        with open(writing, "wb", closefd=False) as pipe:
            pipe.write(holdings.to_json().encode() + b"\n")
    except BrokenPipeError:
        pass  # it has ended; its exit code says so
    if reaper.wait() != 0:
        os.close(writing)
        raise EnvironmentNotReady(f"the reaper did not start: exit code {reaper.returncode}; its error is above")
    os.set_inheritable(writing, survives_exec)
    return writing


def main() -> int:
    holdings = Holdings.from_json(sys.stdin.buffer.readline().decode())
    if os.fork():
        os._exit(0)  # the owner must not have it as a child, as it may wait for all its children
    sys.stdin.buffer.read()
    release(holdings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
