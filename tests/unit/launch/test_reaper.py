"""The launcher notices that its reaper was killed, and starts it again a few times."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynamix_ps.launch.cleanup import Holdings, make_scratch, scratch_path
from dynamix_ps.launch.reaper import Reaper
from tests.launching import command_line, reapers_of, wait_for

RUN_ID = f"{os.getpid():08x}"


class Events:
    def __init__(self) -> None:
        self.kinds: list[str] = []

    def event(self, kind: str, **fields: object) -> None:
        self.kinds.append(kind)


@pytest.fixture
def holdings() -> Iterator[Holdings]:
    yield Holdings(run_id=RUN_ID, shm_prefix=f"dynamix_{RUN_ID}_", scratch=str(make_scratch(RUN_ID, sockets=0)))
    assert not scratch_path(RUN_ID).exists()


def kill_reaper() -> None:
    mine = reapers_of(RUN_ID)
    assert len(mine) == 1
    os.kill(mine[0], signal.SIGKILL)
    wait_for(lambda: not command_line(str(mine[0])), "the end of the reaper")


def test_a_killed_reaper_is_started_again_until_it_was_killed_too_often(holdings: Holdings) -> None:
    events = Events()
    reaper = Reaper(holdings, events)
    for _ in range(3):
        kill_reaper()
        reaper.check()
        reaper.check()
    assert events.kinds == ["reaper_restarted"] * 3
    reaper.close()
    wait_for(lambda: not Path(holdings.scratch).exists(), "the last reaper to clean up")


def test_after_too_many_kills_it_says_once_that_there_is_none(holdings: Holdings) -> None:
    events = Events()
    reaper = Reaper(holdings, events)
    for _ in range(4):
        kill_reaper()
        reaper.check()
    reaper.check()
    assert events.kinds == ["reaper_restarted"] * 3 + ["degraded"]
    reaper.close()
    Path(holdings.scratch).rmdir()
