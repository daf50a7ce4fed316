"""One process is a worker: the first that attaches. A process that it starts inherits its variables, and is refused.

Otherwise both processes would join as the same worker, and all workers would wait for sums that never complete.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path

from dynamix_ps.config import variables
from dynamix_ps.errors import UsageError

_holder = 0  # number of the process that is the worker; a forked child inherits it, and has another number


def check_place(environ: MutableMapping[str, str]) -> None:
    """Raises UsageError if another process is this worker."""
    if _holder == os.getpid():
        return
    holder = _holder or environ.get(variables.ATTACHED) or _named_in(_claim(environ))
    if holder:
        raise UsageError(
            f"process {holder} is worker {environ.get('DMLC_WORKER_ID', '0')} already, and a worker is one process. "
            f"This process ({os.getpid()}) inherited the variables of that worker: start it without the variables "
            "DMLC_*, BYTEPS_* and DYNAMIX_*, and it trains alone; to train in more processes, add workers to the "
            "cluster file"
        )


def take_place(environ: MutableMapping[str, str]) -> None:
    """From now on this process is the worker. Raises UsageError if another one is.

    Does nothing in a process that belongs to no job.
    """
    global _holder  # noqa: PLW0603  a process has one place
    check_place(environ)
    claim, me = _claim(environ), os.getpid()
    if _holder or not (claim or environ.get("DMLC_ROLE") or environ.get(variables.RUN_DIR)):
        return
    if claim:
        try:
            claim.symlink_to(str(me))  # of several processes one succeeds
        except FileExistsError:
            check_place(environ)
        except OSError:
            pass  # a container may lack the folder; the variable below is enough for processes that this one starts
    environ[variables.ATTACHED] = str(me)
    _holder = me


def _claim(environ: MutableMapping[str, str]) -> Path | None:
    """The link that names the process. Each start of the worker has a link of its own."""
    folder = environ.get(variables.PLACE)
    process = environ.get("BYTEPS_LOCAL_RANK") or "0"  # a worker may have several, by NVIDIA_VISIBLE_DEVICES
    starts = environ.get(variables.STARTS) or "0"
    return Path(folder, f"attached-{process}-{starts}") if folder else None


def _named_in(claim: Path | None) -> str:
    with suppress(OSError):
        return os.readlink(claim) if claim else ""
    return ""
