"""What worker 0 does while the others wait, before a training is attached: such as preparing its data."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import NamedTuple

from dynamix_ps.errors import TrainingError
from worker_hooks.process import failure
from worker_hooks.session import is_open, join
from worker_hooks.settings import Settings
from worker_hooks.start import BEFORE_ALL, FAILED_BEFORE_ALL, check_workers

_calls = itertools.count()


class Place(NamedTuple):
    """Which worker this is, of how many."""

    rank: int
    size: int


def run_before_all(framework: str, prepare: Callable[[], object] | None) -> Place:
    """What `before_all` of each framework does."""
    if is_open():
        raise TrainingError("before_all() after attach(); call it before attach(), or after run.close()")
    settings = Settings.from_environment()
    comm = join(settings, framework).comm
    me, key = Place(comm.rank, comm.size), f"dynamix.before_all{next(_calls)}.error"
    if comm.late:
        return me  # the others have done it
    failure.others_may_wait("before_all")
    failed: BaseException | None = None
    if me.rank == 0 and prepare is not None:
        try:
            prepare()
        except BaseException as error:  # SystemExit too
            failed = error
    warn_s = settings.config.timeouts.stall_warn_s

    def tell(waited_s: float) -> None:
        nonlocal warn_s
        if waited_s >= warn_s:
            warn_s *= 2
            print(f"note: worker {me.rank} has waited {waited_s:.0f} s in before_all()", file=sys.stderr, flush=True)

    told = check_workers(comm, framework, FAILED_BEFORE_ALL if failed is not None else BEFORE_ALL, tell)
    if FAILED_BEFORE_ALL in told:
        name = getattr(prepare, "__qualname__", repr(prepare))
        text = comm.broadcast(key, f"{name}: {type(failed).__name__}: {failed}".encode()).decode()
        if failed is not None:
            raise failed
        raise TrainingError(
            f"worker 0 has failed in before_all() with {' '.join(text.split())}; no worker goes on. Its log says where"
        )
    return me
