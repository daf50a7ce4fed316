"""SIGTERM: a checkpoint of the last complete iteration, and then the end that SIGTERM means.

The handler only notes the signal. The worker goes on, and the next sum tells all workers that it ends. At the end of
this iteration worker 0 writes a checkpoint, and those that have the signal end. Where no iteration completes within
GRACE_S, because others are gone or the script does something else, a worker ends without.

In an elastic job the first SIGTERM is a notice: the worker votes to leave, and the others go on (departures.py). So is
SIGUSR1, and what the coordinator says. Where the vote does not count, SIGTERM means what it means in other jobs, and so
does a second one; the other notices then mean nothing. It also does so when the launcher ends the job.

Where too few workers are left, the coordinator has all of them end in the same way, with an error.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn, Protocol

GRACE_S = 8.0  # less than the launcher waits before it kills

_libc = ctypes.CDLL(None)


class Terminable(Protocol):
    @property
    def goes_on_at_term(self) -> bool:
        """Whether it has an iteration to complete before it ends."""

    @property
    def may_leave(self) -> bool:
        """Whether the other workers can go on without it, if it leaves by vote."""

    @property
    def job_ends(self) -> bool:
        """Whether the launcher ends the job, so that nobody goes on."""

    def terminated(self) -> None:
        """Record that this worker ends by SIGTERM."""


class Termination:
    """SIGTERM to this process, and notices.

    Attributes:
        requested: SIGTERM has come, and the present iteration is the last.
        leaving: this worker is to leave the job, and votes so in its sums.
        cause: why the training ends, if not by SIGTERM.
    """

    def __init__(self) -> None:
        self.requested = self.leaving = False
        self.cause = ""
        self._noticed = False  # a SIGTERM has come that was a notice
        self._fails = False  # the process records why it fails, and then ends
        self._runs: list[Terminable] = []
        self._pid = 0  # whose handler it is
        self._mask = threading.local()  # of signals, while a thread forks
        self._sees_forks = False
        self._told = threading.Event()
        self._may_end = threading.Lock()

    def watch(self, run: Terminable) -> None:
        """From now on `run` decides what SIGTERM does. A handler of the script's own stays."""
        self._runs.append(run)
        if self._pid == os.getpid() or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self._pid = os.getpid()
            if not self._sees_forks:
                os.register_at_fork(
                    before=self._before_fork, after_in_parent=self._after_fork, after_in_child=self._in_fork
                )
                self._sees_forks = True
            threading.Thread(target=self._end_late, name="dynamix-term", daemon=True).start()
            signal.signal(signal.SIGTERM, self._on_signal)

    def notice_usr1(self) -> None:
        """From now on SIGUSR1 is a notice. A handler of the script's own stays."""
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
            signal.signal(signal.SIGUSR1, lambda *_: self.leave())

    def leave(self) -> None:
        """This worker is to leave the job. From any thread."""
        self.leaving = True

    def finish(self, why: str) -> None:
        """The training ends with a coming iteration, for this reason. From any thread. All workers hear it."""
        self.cause, self.requested = why, True

    def refuse(self, why: str) -> None:
        """The vote does not count: the worker goes on, or ends if the notice was a SIGTERM."""
        self.leaving = False
        with suppress(OSError, ValueError):
            print(f"warning: {why}", file=sys.stderr, flush=True)
        if self._noticed:
            self._end_in_order()

    def failing(self) -> None:
        """This process records why it fails, and ends in seconds: SIGTERM does not cut that short. From any thread."""
        self._fails = True

    def forget(self, run: object) -> None:
        """`run` is over."""
        self._runs = [one for one in self._runs if one is not run]

    def _before_fork(self) -> None:
        """A fork loses a signal that comes before it has seen to its handlers, so it gets none until then."""
        self._mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _after_fork(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask.before)

    def _in_fork(self) -> None:
        """A fork, such as a process of a loader, is no worker, and ends by SIGTERM at once. A handler in Python would
        run only when its main thread has got the lock that it may be waiting for."""
        if signal.getsignal(signal.SIGTERM) == self._on_signal:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._after_fork()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._fails:
            return
        if (
            os.getpid() == self._pid
            and not self._noticed
            and any(run.may_leave and not run.job_ends for run in self._runs)
        ):
            self._noticed = True
            self.leave()
        else:
            self._end_in_order()

    def _end_in_order(self) -> None:
        """After the present iteration, or at once where there is none to complete."""
        if os.getpid() != self._pid or not any(run.goes_on_at_term for run in self._runs):
            _die()
        self.requested = True
        self._told.set()

    def _end_late(self) -> None:
        self._told.wait()
        time.sleep(GRACE_S)
        with self._may_end:
            self._end(
                f"no iteration was complete within {GRACE_S:g} s of SIGTERM; this worker ends without a checkpoint"
            )

    @contextmanager
    def held_off(self) -> Iterator[None]:
        """Within it a checkpoint is written; the process does not end on account of GRACE_S."""
        with self._may_end:
            yield

    def end(self, why: str) -> NoReturn:
        """End this process as SIGTERM does, and say why on standard error."""
        self._may_end.acquire()
        self._end(why)

    def _end(self, why: str) -> NoReturn:
        with suppress(OSError, ValueError):  # who reads standard error is gone
            print(f"warning: {why}", file=sys.stderr)
        for run in self._runs:
            run.terminated()
        _die()


def _die() -> NoReturn:
    """End by SIGTERM, from any thread."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, RuntimeError):  # closed, or the signal came in the middle of a print
            stream.flush()
    _libc.signal(signal.SIGTERM, None)  # the default action; signal.signal is for the main thread only
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(128 + signal.SIGTERM)


TERMINATION = Termination()
