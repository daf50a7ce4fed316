"""A process that has torch imported, and forks to run scripts: the server of forked_cluster.py.

It reads jobs from standard input, one JSON object a line, and answers each with one. A job that names a script starts
it in a new process, and the answer has its number. The answer to an empty job has the processes that have ended since.
When the input closes, the server ends, and what it has started with it.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from dynamix_ps.launch.host.parent import tie_to_parent

_IMPORTED = ("numpy", "torch")


def serve() -> str | None:
    """Answer until standard input closes. Returns in each worker too: its script."""
    workers: set[int] = set()
    for line in sys.stdin:
        job = json.loads(line)
        if not job:
            ended = dict(_ended(workers))
            workers -= set(ended)
            print(json.dumps({"ended": ended}), flush=True)
            continue
        server_pid = os.getpid()
        if not (pid := os.fork()):
            return _become_worker(job, server_pid)
        workers.add(pid)
    for pid in workers:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    return None


def _ended(workers: set[int]) -> Iterator[tuple[int, int]]:
    for pid in workers:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            yield pid, os.waitstatus_to_exitcode(status)


def _become_worker(job: Mapping[str, Any], server_pid: int) -> str:
    os.setsid()
    tie_to_parent(server_pid)
    print(json.dumps({"pid": os.getpid()}), flush=True)  # from now on its process group can be killed
    with open(os.devnull) as nothing, open(job["log"], "ab") as log:
        os.dup2(nothing.fileno(), 0)
        for target in (1, 2):
            os.dup2(log.fileno(), target)
    if job["network"]:
        with open(job["network"]) as network:
            ctypes.CDLL(None).setns(network.fileno(), 0)
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["environ"])
    return str(job["script"])


def main() -> None:
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # else collections in the workers would visit, and so copy, all that was imported
    if (script := serve()) is not None:
        sys.argv = [script]
        sys.path[0] = os.path.dirname(script)
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
