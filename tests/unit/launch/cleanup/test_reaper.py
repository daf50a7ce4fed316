"""The launcher notices that its reaper was killed, and starts it again a few times."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynamix_ps.launch.cleanup.holdings import Holdings, make_scratch, new_scratch_path, new_shm_prefix
from dynamix_ps.launch.cleanup.reaper import Reaper
from tests.launching import reapers_of, wait_for

RUN_ID = f"{os.getpid():08x}"


class Events:
    def __init__(self) -> None:
        self.kinds: list[str] = []

    def event(self, kind: str, **fields: object) -> None:
        self.kinds.append(kind)


@pytest.fixture
def holdings() -> Iterator[Holdings]:
    scratch = make_scratch(new_scratch_path(RUN_ID), sockets=0)
    yield Holdings(run_id=RUN_ID, shm_prefix=new_shm_prefix(RUN_ID), scratch=str(scratch))
    assert not scratch.exists()


def kill(reaper: Reaper, events: Events) -> None:
    """Kill the reaper, and let its owner notice."""
    (running,) = reapers_of(RUN_ID)
    os.kill(running, signal.SIGKILL)
    before = len(events.kinds)
    wait_for(lambda: reaper.check() or len(events.kinds) > before, "the owner to notice")


def test_a_killed_reaper_is_started_again_and_cleans_up_in_the_end(holdings: Holdings) -> None:
    events = Events()
    reaper = Reaper(holdings, events)
    for _ in range(3):
        kill(reaper, events)
        reaper.check()
    assert events.kinds == ["reaper_restarted"] * 3
    reaper.close()
    wait_for(lambda: not Path(holdings.scratch).exists(), "the last reaper to clean up")


def test_after_too_many_kills_it_says_once_that_there_is_none(holdings: Holdings) -> None:
    events = Events()
    reaper = Reaper(holdings, events)
    for _ in range(4):
        kill(reaper, events)
    reaper.check()
    assert events.kinds == ["reaper_restarted"] * 3 + ["degraded"]
    reaper.close()
    Path(holdings.scratch).rmdir()
