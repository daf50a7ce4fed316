"""A machine measures one grid at a time."""

from __future__ import annotations

import contextlib
import subprocess
import uuid

import pytest

from benchmarks.suite import machine_lock as alone
from benchmarks.suite.machine_lock import exclusive_machine

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def machine_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone, "_NAME", f"\0{uuid.uuid4()}")
    monkeypatch.setattr(alone, "_POLL_S", 0.01)


def test_the_second_waits_for_the_first() -> None:
    with contextlib.ExitStack() as first:
        first.enter_context(exclusive_machine(lambda: pytest.fail("nobody else is here")))
        ended = []

        def first_ends() -> None:
            ended.append(True)
            first.close()

        with exclusive_machine(first_ends):
            assert ended == [True]
    with exclusive_machine(lambda: pytest.fail("both have ended")):
        pass


def test_a_cell_that_outlives_its_runner_keeps_others_out() -> None:
    with exclusive_machine(lambda: pytest.fail("nobody else is here")) as kept:
        cell = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(kept,))
    ended: list[int] = []
    with exclusive_machine(lambda: ended.append(cell.communicate() and cell.returncode)):
        assert ended == [0]
