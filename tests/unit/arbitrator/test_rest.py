"""Work that holds the event loop up waits until a decision is out."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynamix_ps.arbitrator.__main__ import GARBAGE, _collect_garbage
from dynamix_ps.messages import Plan
from tests.control_plane import run_under
from tests.unit.arbitrator.service_bench import Bench, Scripted


class Cycle:
    """Garbage that only a collection frees."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.timeout(60)
async def test_it_comes_once_per_decision_when_all_workers_can_have_the_plan(tmp_path: Path) -> None:
    rested: asyncio.Queue[Plan] = asyncio.Queue()
    bench = Bench(tmp_path, Scripted((32, 64, 128)))
    bench.register_all()
    records = run_under(bench.plan, 0)
    bench.report(records[:2])
    assert not await bench.arbitrator.step()
    task = asyncio.create_task(bench.arbitrator.run(lambda: rested.put_nowait(bench.plan)))
    bench.report(records)
    assert await rested.get() == Plan(1, (32, 64, 128))
    task.cancel()
    await asyncio.wait((task,))


@pytest.mark.timeout(60)
async def test_it_comes_while_nobody_reports(tmp_path: Path) -> None:
    rested = asyncio.Event()
    task = asyncio.create_task(Bench(tmp_path, Scripted()).arbitrator.run(rested.set))
    await rested.wait()
    task.cancel()
    await asyncio.wait((task,))


def test_much_garbage_is_collected(no_collections: None) -> None:
    garbage = [weakref.ref(Cycle()) for _ in range(GARBAGE)]
    _collect_garbage()
    assert not any(one() for one in garbage)


def test_old_garbage_is_collected_the_tenth_time(no_collections: None) -> None:
    old = Cycle()
    gc.collect()
    garbage = weakref.ref(old)
    del old
    times = 0
    while garbage() is not None and times < 20:
        times += 1
        new = [Cycle() for _ in range(2 * GARBAGE)]  # objects that other threads free meanwhile do not matter
        _collect_garbage()
        del new
    assert times == 11


def test_little_garbage_waits(no_collections: None) -> None:
    garbage = weakref.ref(Cycle())
    _collect_garbage()
    assert garbage() is not None
