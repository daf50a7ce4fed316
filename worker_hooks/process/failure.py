"""How a worker ends. A worker that fails says why and ends at once: a normal shutdown would wait for the other workers,
which wait for its gradients. A forked process is no worker: its end and its errors do not concern the others."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from types import TracebackType
from typing import NoReturn, Protocol

from dynamix_ps.comm import Comm
from dynamix_ps.errors import INTERRUPTED_EXIT_CODE, DynamixError, PeerLostError, StallError

LOST_GRACE_S = 2.0  # so that the launcher sees first which worker was lost, and then this one


class Abandonable(Protocol):
    def abandon(self, error: BaseException) -> None: ...
    def close(self) -> None: ...
    def explained(self, error: BaseException) -> BaseException: ...


_runs: list[Abandonable] = []
_hook: object = None  # the last that was set
_trained: set[str] = set()  # not empty: this process has taken part in something, so others may wait for it


def exit_on_failure(run: Abandonable) -> None:
    """From now on `run` records an uncaught exception, and the process ends without waiting for the other workers."""
    _runs.append(run)
    others_may_wait(type(run).__name__)


def others_may_wait(where: str) -> None:
    """From now on the process ends on an uncaught exception without waiting for the other workers."""
    _trained.add(where)


def forget(run: Abandonable) -> None:
    """`run` is over; what happens later does not concern it."""
    _runs.remove(run)


def _in_forked_child() -> None:
    atexit.unregister(leave)
    for run in _runs:
        atexit.unregister(run.close)
    _runs.clear()
    _trained.clear()


os.register_at_fork(after_in_child=_in_forked_child)


def install() -> None:
    """Handle uncaught exceptions: one of ours prints one line and ends with its exit code; others print a traceback.

    A hook that the script has set since the last call is asked after this one.
    """
    global _hook  # noqa: PLW0603  there is one in a process
    before = sys.excepthook
    if before is _hook:
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        for run in _runs:
            told = run.explained(error)
            if told is not error:
                before(kind, error, trace)  # it names the line of the script
                error = told
        for run in _runs:
            run.abandon(error)
        if isinstance(error, DynamixError):
            print(f"error: {error}", file=sys.stderr)
            if isinstance(error, PeerLostError):
                time.sleep(LOST_GRACE_S)
            exit_now(error.exit_code)
        before(kind, error, trace)
        if _trained:
            exit_now(INTERRUPTED_EXIT_CODE if isinstance(error, KeyboardInterrupt) else 1)

    sys.excepthook = _hook = hook


def end_beside_training(error: DynamixError) -> NoReturn:
    """End this process from another thread than the one that trains, which may wait without end."""
    for run in list(_runs):
        run.abandon(error)
    print(f"error: {error}", file=sys.stderr)
    exit_now(error.exit_code)


def end_now() -> NoReturn:
    """End this process by the exception that is being handled, as if the script did not catch it."""
    kind, error, trace = sys.exc_info()
    assert kind is not None and error is not None, "called in an `except`"
    sys.excepthook(kind, error, trace)
    exit_now(1)


def exit_now(code: int) -> NoReturn:
    """End this process without waiting for the other workers."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def leave(comm: Comm, patience_s: float) -> None:
    """Shut the data plane down with the other workers. Without them, end this process after `patience_s` (exit 5).

    A worker that has left them ends at once, in order.
    """
    if comm.left:
        exit_now(0)
    shutdown = threading.Thread(target=comm.shutdown, name="dynamix-shutdown", daemon=True)
    shutdown.start()
    shutdown.join(patience_s)
    if shutdown.is_alive():
        print(
            f"error: worker {comm.rank} is done but the others did not finish within {patience_s:g} s; "
            "did every worker's loop run as many iterations?",
            file=sys.stderr,
        )
        exit_now(StallError.exit_code)
