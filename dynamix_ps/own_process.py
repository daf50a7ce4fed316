"""Starts a process of this project, which imports nothing from its working folder. Only the user's script does.

    python .../dynamix_ps/own_process.py MODULE [ARGUMENT...]

`python -m MODULE` would import from the working folder first, where users have files such as `random.py` or `queue.py`.
"""

from __future__ import annotations

import os
import sys

FILE = os.path.abspath(__file__)
ROOT = os.path.dirname(os.path.dirname(FILE))  # where the packages of this project are


def command(module: str, *arguments: str, python: str = sys.executable) -> tuple[str, ...]:
    """The command line of a process that runs a module with this Python."""
    return (python, FILE, module, *arguments)


def leave_out_working_folder() -> None:
    """Remove from `sys.path` the folder that Python has put in front for this program, and the working folder.

    A working folder that is the checkout of this project stays.
    """
    first = 0 if getattr(sys.flags, "safe_path", False) else 1
    here = os.getcwd()
    kept = [folder for folder in sys.path[first:] if folder == ROOT or folder not in ("", here)]
    sys.path[:] = kept if ROOT in kept else [*kept, ROOT]


if __name__ == "__main__":
    leave_out_working_folder()
    import runpy

    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
