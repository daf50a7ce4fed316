"""Processes, some at a time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from dynamix_ps.rehearsal.processes import some_at_a_time


def test_each_job_ends_with_its_code_and_no_more_than_allowed_run_at_a_time():
    alive: list[int] = []
    started: dict[int, subprocess.Popen[bytes]] = {}

    def start(code: int) -> subprocess.Popen[bytes]:
        alive.append(1 + sum(process.poll() is None for process in started.values()))
        started[code] = subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"])
        return started[code]

    codes = [3, 1, 2, 0]
    found = list(some_at_a_time(codes, 2, start, lambda running: None))
    assert {job: code for job, code in found} == {code: code for code in codes}
    assert max(alive) <= 2


def test_who_leaves_stops_what_runs():
    started: list[subprocess.Popen[bytes]] = []
    programs = ["pass", "import time; time.sleep(600)"]

    def start(program: str) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", program]))
        return started[-1]

    def leave() -> None:
        with closing(some_at_a_time(programs, 2, start, lambda running: None)) as ended:
            for _ in ended:
                raise KeyError("the first is a failure")

    with pytest.raises(KeyError):
        leave()
    assert all(process.poll() is not None for process in started)


def test_jobs_are_taken_one_by_one_as_long_as_there_are_any():
    def jobs() -> Iterator[str]:
        yield "first"
        assert started == ["first"], "the next one is taken when a process can begin"
        yield "second"

    started: list[str] = []

    def start(name: str) -> subprocess.Popen[bytes]:
        started.append(name)
        return subprocess.Popen([sys.executable, "-c", ""])

    assert [job for job, _ in some_at_a_time(jobs(), 1, start, lambda running: None)] == ["first", "second"]
