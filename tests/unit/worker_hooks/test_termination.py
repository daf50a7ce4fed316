"""SIGTERM in forks of a training process."""

from __future__ import annotations

import os
import signal

from worker_hooks.termination import Termination


class Run:
    goes_on_at_term = True

    def terminated(self) -> None:
        pass


def test_a_fork_has_the_default_action_and_the_training_process_its_handler() -> None:
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    termination = Termination()
    try:
        termination.watch(Run())
        if not (pid := os.fork()):
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
            os._exit(signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL or signal.SIGTERM in blocked)
        assert os.waitpid(pid, 0)[1] == 0
        assert signal.getsignal(signal.SIGTERM) == termination._on_signal
        assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.signal(signal.SIGTERM, before)
