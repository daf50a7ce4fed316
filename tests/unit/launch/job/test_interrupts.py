"""Signals to the launcher, and notices that come to a host."""

from __future__ import annotations

import os
import signal

from dynamix_ps.launch.job.interrupts import Interrupts


def test_the_first_signal_is_remembered_and_all_are_counted() -> None:
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
    assert (interrupts.count, interrupts.first) == (2, "SIGTERM")


def test_notices_to_all_hosts_and_to_the_launcher_are_one() -> None:
    """`scancel` tells all at once, in any order; a second signal would kill."""
    with Interrupts() as interrupts:
        interrupts.notice("SIGTERM", "b")
        interrupts.notice("SIGTERM", "a")
        os.kill(os.getpid(), signal.SIGTERM)
        assert (interrupts.count, interrupts.first) == (1, "SIGTERM on host b")
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.count == 2


def test_a_notice_after_a_signal_changes_nothing() -> None:
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        interrupts.notice("SIGTERM", "b")
        os.kill(os.getpid(), signal.SIGINT)
    assert (interrupts.count, interrupts.first) == (2, "SIGINT")
