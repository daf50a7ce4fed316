"""Hypothesis draws the same examples in every run, so that a test result changes only with the code.

`pytest --hypothesis-profile=search` looks for new examples; `check` draws few.

A shell lets jobs in the background ignore SIGINT and SIGQUIT; the tests, and what they start, do not.

Tests that run in a Slurm job or a Ray cluster know nothing of it.

Every process of a test computes with one thread: those of several processes would wait for cores by spinning.

The process of the tests forks, as training processes do, without gRPC's handlers: they wait for threads that wait for
the GIL, which the one that forks holds.

What has been imported for all tests is no garbage: collections, which some tests ask for, do not look at it again.

A test that leaves a connection open in the process of the tests fails itself, and not one that counts them later.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import Phase, settings

import dynamix_ps.rpc  # noqa: F401  switches the handlers off, before a test imports gRPC
from dynamix_ps.one_thread import ONE_THREAD
from tests.left_connections import sockets, tcp_among

# Repeatable in the same process: hypothesis also draws the constants of the modules that are imported by then.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("check", max_examples=20, derandomize=True, deadline=None)
settings.register_profile("search", max_examples=1000, deadline=None)
# For tests/breaks, which ask whether a test fails and not for the smallest example.
settings.register_profile("unshrunk", derandomize=True, deadline=None, phases=(Phase.explicit, Phase.generate))
settings.load_profile("repeatable")

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)

for name in [name for name in os.environ if name.startswith("SLURM_") or name == "RAY_ADDRESS"]:
    del os.environ[name]

for name, threads in ONE_THREAD.items():
    os.environ.setdefault(name, threads)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


_CLOSING_S = 10.0  # gRPC closes its connections in threads of its own


@pytest.fixture(autouse=True)
def no_connection_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test has opened, it closes. One that fails may leave what its traceback holds."""
    before, failed = sockets(), request.session.testsfailed
    yield
    if request.session.testsfailed > failed or not sockets() - before:
        return
    gc.collect()
    deadline_s = time.monotonic() + _CLOSING_S
    while (left := tcp_among(sockets() - before)) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert not left, f"left open by this test: {left}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The time of the tests by folder, the longest first, after a run of more than one folder."""
    spent_s: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                spent_s[report.nodeid.partition("::")[0].rpartition("/")[0]] += report.duration
    if len(spent_s) > 1:
        terminalreporter.section("seconds by folder")
        for folder, seconds in spent_s.most_common():
            terminalreporter.line(f"{seconds:8.0f}  {folder}")
