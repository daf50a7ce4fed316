"""A companion leaves the cores to the first iteration, and waits for nothing longer than that."""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynamix_ps.other_launchers import companion
from dynamix_ps.run_record.iteration_mark import IterationMark

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The end of the pipe in which the worker writes."""
    reads, writes = os.pipe()
    with os.fdopen(reads) as told:
        monkeypatch.setattr(sys, "stdin", told)
        yield writes


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[threading.Thread]:
    """A companion that waits, in a thread, for as long as it takes."""
    place = tmp_path / "mark"
    thread = threading.Thread(target=companion._await_first_iteration, args=(place, math.inf), daemon=True)
    yield thread
    thread.join()


def test_it_goes_on_after_the_first_iteration(worker: int, waiting: threading.Thread, tmp_path: Path) -> None:
    mark = IterationMark(tmp_path / "mark")
    mark.write(0)
    waiting.start()
    waiting.join(3 * companion._LOOK_S)
    assert waiting.is_alive()
    mark.write(1)
    waiting.join()
    mark.close()
    os.close(worker)


def test_it_goes_on_when_the_worker_is_gone(worker: int, waiting: threading.Thread) -> None:
    waiting.start()
    os.close(worker)


def test_it_goes_on_when_the_first_iteration_takes_long(worker: int, tmp_path: Path) -> None:
    companion._await_first_iteration(tmp_path / "mark", 0.2)
    os.close(worker)
