"""Who is cut off and who is only slow: over real streams to the coordinator, with sums that threads make.

A worker is lost where its stream is silent, and a server waits for it in vain. Neither of the two is enough.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dynamix_ps.config.schema import Timeouts
from dynamix_ps.membership.generations import MembershipSettings
from dynamix_ps.rpc.access import ArbitratorAccess
from tests.unit.worker_hooks.test_membership import PATIENCE_S, Control, Job

pytestmark = pytest.mark.timeout(60)

LEASE_S = 1.0
SLOW_S = 3 * LEASE_S
NEVER_S = 3600.0
ROUNDS, IN_ROUND = 30, 10


class Impatient(Control):
    def access(self) -> ArbitratorAccess:
        timeouts = Timeouts(rpc_s=2.0, lease_s=LEASE_S)
        return dataclasses.replace(super().access(), timeouts=timeouts)


class Partition(Job):
    """Three workers, of which worker 2 is hit."""

    def cut_control_link(self) -> None:
        """Worker 2 gives the coordinator no sign of life any more."""
        member = self.members[2]._member
        member._access = dataclasses.replace(member._access, timeouts=Timeouts(rpc_s=2.0, lease_s=NEVER_S))

    def cut_data_links(self) -> None:
        """The servers miss it."""
        for server in self.servers:
            server.missed = frozenset({2})

    def lost(self) -> list[int]:
        return [line["slot"] for line in self.control.notes.lines if line["kind"] == "lost"]


@contextmanager
def running(folder: Path) -> Iterator[Partition]:
    control = Impatient(folder, MembershipSettings(3, 2, confirm_s=30.0, lease_s=LEASE_S))
    job = Partition(control, workers=3, servers=2)
    control.notes.wait_for(lambda line: line["kind"] == "members")
    try:
        yield job
    finally:
        job.close()
        control.stop()


@pytest.mark.slow
def test_a_cut_control_link_alone_evicts_nobody(tmp_path: Path) -> None:
    """However slow the worker is: its transport answers the servers."""
    with running(tmp_path) as job:

        def cut() -> None:
            job.cut_control_link()
            time.sleep(SLOW_S)

        job.at[2, IN_ROUND] = cut
        job.train(ROUNDS)
        job.check(ROUNDS, {})
        assert job.lost() == [] and not job.replaced


@pytest.mark.slow
def test_a_worker_that_only_the_servers_miss_stays_while_the_coordinator_hears_it(tmp_path: Path) -> None:
    with running(tmp_path) as job:

        def miss() -> None:
            job.cut_data_links()
            time.sleep(SLOW_S)
            for server in job.servers:
                server.missed = frozenset()

        job.at[2, IN_ROUND] = miss
        job.train(ROUNDS)
        job.check(ROUNDS, {})
        assert job.lost() == [] and not job.replaced


def test_who_is_silent_everywhere_is_lost_after_its_lease_and_hears_it_when_it_is_back(tmp_path: Path) -> None:
    with running(tmp_path) as job:
        told = threading.Event()

        def hear(reason: str) -> None:
            job.replaced[2] = reason
            told.set()

        def vanish() -> None:
            job.cut_control_link()
            job.cut_data_links()
            job.control.notes.wait_for(lambda line: line["kind"] == "lost")
            job.workers[2].dead = True  # what it would push now is void
            assert told.wait(PATIENCE_S)

        job.members[2]._replaced = hear
        job.at[2, IN_ROUND] = vanish
        job.train(ROUNDS)
        job.check(ROUNDS, {2: IN_ROUND})
        assert job.lost() == [2]
        assert job.replaced == {2: "worker 2 (w2) counts as lost: its lease ran out while others waited"}
