"""How a worker ends. One that fails must end at once and say why: on the normal way out it would wait for the
others, who wait for its gradients."""

from __future__ import annotations

import os
import sys
import threading
import time
from types import TracebackType
from typing import NoReturn, Protocol

from dynamix_ps.comm import Comm
from dynamix_ps.errors import INTERRUPTED_EXIT_CODE, DynamixError, PeerLostError, StallError

LOST_GRACE_S = 2.0  # a launcher that ends the job at the first failure is to see the worker that was lost first


class Abandonable(Protocol):
    def abandon(self, error: BaseException) -> None: ...


_runs: list[Abandonable] = []


def exit_on_failure(run: Abandonable) -> None:
    """From now on an uncaught exception is recorded in `run` and ends the process without any farewell."""
    _runs.append(run)


def install() -> None:
    """Handle uncaught exceptions: our own errors print one line and end with their code, others their traceback."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        for run in _runs:
            run.abandon(error)
        if isinstance(error, DynamixError):
            print(f"error: {error}", file=sys.stderr)
            if isinstance(error, PeerLostError):
                time.sleep(LOST_GRACE_S)
            exit_now(error.exit_code)
        before(kind, error, trace)
        if _runs:
            exit_now(INTERRUPTED_EXIT_CODE if isinstance(error, KeyboardInterrupt) else 1)

    sys.excepthook = hook


def exit_now(code: int) -> NoReturn:
    """End this process without any farewell to the other workers."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def leave(comm: Comm, patience_s: float) -> None:
    """Shut the data plane down together with the others; if they do not come, end this process (exit 5)."""
    farewell = threading.Thread(target=comm.shutdown, name="dynamix-shutdown", daemon=True)
    farewell.start()
    farewell.join(patience_s)
    if farewell.is_alive():
        print(
            f"error: worker {comm.rank} is done but the others did not finish within {patience_s:g} s; "
            "did every worker's loop run as many iterations?",
            file=sys.stderr,
        )
        exit_now(StallError.exit_code)
