"""A small process that cleans up after its owner, however the owner ends.

The owner holds the writing end of the reaper's standard input. When the owner ends, even by `kill -9`, the pipe closes,
and the reaper releases what the run held.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from dynamix_ps.launch.cleanup import Holdings, release


def start_reaper(holdings: Holdings, survives_exec: bool = False) -> int:
    """Start the reaper. Returns a file descriptor: when it is closed, the reaper cleans up and ends.

    With `survives_exec` the descriptor stays open when this process executes another program.
    """
    reading, writing = os.pipe()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DYNAMIX_")}
    package_root = str(Path(__file__).resolve().parents[2])
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, (package_root, environ.get("PYTHONPATH", ""))))
    subprocess.run(
        [sys.executable, "-m", "dynamix_ps.launch.reaper", holdings.to_json()],
        stdin=reading,
        stdout=subprocess.DEVNULL,
        env=environ,
        start_new_session=True,
        check=True,
    )
    os.close(reading)
    os.set_inheritable(writing, survives_exec)
    return writing


def main() -> int:
    holdings = Holdings.from_json(sys.argv[1])
    if os.fork():
        os._exit(0)  # the owner must not have it as a child, as it may wait for all its children
    sys.stdin.buffer.read()
    release(holdings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
