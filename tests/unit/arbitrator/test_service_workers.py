"""The arbitrator while workers come and go: who is waited for, and who has a part in plans."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from dynamix_ps.arbitrator.journal import replay
from dynamix_ps.config.schema import Cluster, Elastic, WorkerSection
from dynamix_ps.messages import Plan
from dynamix_ps.rpc.refusals import StaleIncarnationError
from tests.control_plane import config, record, registration, run_under
from tests.unit.arbitrator.service_bench import Bench, Scripted


async def test_a_silent_worker_is_named_and_no_longer_waited_for(tmp_path: Path) -> None:
    policy = Scripted((32, 64, 128), (40, 64, 128))
    bench = Bench(tmp_path, policy)
    bench.register_all()
    records = run_under(Plan(0, (64, 64, 64)), 0)
    bench.now_s += 2
    bench.report(records[:2])
    await bench.arbitrator.step()
    bench.now_s += 1.5  # worker 2 was last heard of 3.5 s ago, the lease is 3 s
    await bench.arbitrator.step()
    assert [line["rank"] for line in bench.lines("lease_lost")] == [2]
    assert policy.views[0].records[2] is None
    assert bench.lines("plan")[0]["reported"] == [0, 1]
    bench.arbitrator.heartbeat(2, "life-2", 7)
    assert [line["rank"] for line in bench.lines("lease_back")] == [2]


async def test_nobody_alive_nothing_decided(tmp_path: Path) -> None:
    policy = Scripted()
    bench = Bench(tmp_path, policy)
    await bench.arbitrator.step()
    bench.register_all()
    bench.report(run_under(Plan(0, (64, 64, 64)), 0)[:1])
    bench.now_s += 100
    await bench.arbitrator.step()
    assert policy.views == []


async def test_who_left_is_not_waited_for(tmp_path: Path) -> None:
    policy = Scripted((32, 64, 128))
    bench = Bench(tmp_path, policy)
    bench.register_all()
    bench.arbitrator.leave(2, "life-2")
    bench.report(run_under(Plan(0, (64, 64, 64)), 0)[:2])
    await bench.arbitrator.step()
    assert len(policy.views) == 1


@pytest.mark.parametrize(("keep", "three"), [("global", (43, 43, 42, 0)), ("local", (64, 64, 64, 0))])
async def test_a_worker_that_comes_later_gets_its_share_when_it_registers(
    tmp_path: Path, keep: Any, three: tuple[int, ...]
) -> None:
    """Until then nobody waits for it, and no policy can give it anything; a restarted arbitrator knows both."""

    workers = (*(WorkerSection(batch=64),) * 2, *(WorkerSection(batch=64, later=True),) * 2)
    changes = {"cluster": Cluster(workers=workers), "elastic": Elastic(min_workers=1, keep=keep)}
    cluster = config().model_copy(update=changes)
    policy = Scripted((64, 64, 99, 99), (50, 40, 38, 99), three)
    bench = Bench(tmp_path, policy, cluster)
    assert bench.plan == Plan(0, (64, 64, 0, 0))
    for rank in range(2):
        bench.arbitrator.register(registration(rank, plan=bench.plan))
    bench.report([record(rank, 0) for rank in range(2)])
    await bench.arbitrator.step()
    assert policy.views[0].bounds == ((32, 1024), (32, 1024), (0, 0), (0, 0))
    assert bench.plan == Plan(0, (64, 64, 0, 0)), "it stays"
    told = bench.arbitrator.register(registration(2, plan=bench.plan))
    assert told == bench.plan == Plan(1, three)
    bench.report([record(rank, 1, plan_version=1, batch_size=three[rank]) for rank in range(3)])
    await bench.arbitrator.step()
    assert policy.views[1].bounds == (*((32, 1024),) * 3, (0, 0))
    assert bench.plan == Plan(2, (50, 40, 38, 0))

    again = Bench(tmp_path, policy, cluster)
    assert again.plan == bench.plan
    again.arbitrator.register(registration(2, plan=Plan(0, (64, 64, 0, 0))))
    assert again.plan == bench.plan, "it has its share"
    again.arbitrator.register(registration(3, plan=bench.plan))
    assert again.plan.version == 3 and all(again.plan.batch_sizes)


class Elastically(Bench):
    """Three workers that may come and go. All report sizes, and other values are of no interest."""

    def __init__(
        self, folder: Path, policy: Scripted, keep: Any = "global", sizes: tuple[int, ...] = (64,) * 3
    ) -> None:
        elastic = {"elastic": Elastic(min_workers=1, keep=keep)}
        cluster = {"cluster": Cluster(workers=tuple(WorkerSection(batch=size) for size in sizes))}
        super().__init__(folder, policy, config().model_copy(update=elastic | cluster))

    async def closes(self, number: int, *ranks: int, version: int | None = None) -> None:
        """A window of these workers under the newest plan."""
        under = self.plan.version if version is None else version
        sizes = self.plan.batch_sizes
        self.report([record(rank, number, plan_version=under, batch_size=sizes[rank]) for rank in ranks])
        await self.arbitrator.step()


@pytest.mark.parametrize(
    ("keep", "two", "three"), [("global", (100, 0, 100), (78, 50, 72)), ("local", (50, 0, 50), (61, 37, 52))]
)
async def test_a_lost_worker_has_nothing_in_plans_until_it_is_back(
    tmp_path: Path, keep: Any, two: tuple[int, ...], three: tuple[int, ...]
) -> None:
    policy = Scripted((50, 100, 50), two, (two[0] + 4, 99, two[2] - 4), three)
    bench = Elastically(tmp_path, policy, keep, (96, 64, 96))
    bench.register_all(Plan(0, (96, 64, 96)))
    await bench.closes(0, 0, 1, 2)
    assert bench.plan == Plan(1, (50, 100, 50))
    bench.report([record(1, 1, plan_version=1, batch_size=100)])
    bench.arbitrator.lose(1)
    assert bench.plan == Plan(2, two) and bench.lines("adopted")[-1]["batch_sizes"] == list(two)
    await bench.closes(1, 0, 2, version=1)
    seen = policy.views[-1]
    assert seen.bounds == ((32, 1024), (0, 0), (32, 1024)) and not seen.clean
    assert seen.records[1] is None, "what it had reported is of no interest any more"
    await bench.closes(2, 0, 2)
    assert policy.views[-1].clean and bench.plan == Plan(3, (two[0] + 4, 0, two[2] - 4))
    bench.arbitrator.register(registration(1, plan=bench.plan))
    assert bench.plan.version == 3, "its connection is made anew before it hears that it counts as lost"

    told = bench.arbitrator.register(registration(1, "next", bench.plan))
    assert told == bench.plan == Plan(4, three)
    bench.arbitrator.report("next", record(1, 3, plan_version=4, batch_size=three[1]))
    await bench.closes(3, 0, 2)
    assert policy.views[-1].bounds == ((32, 1024),) * 3 and policy.views[-1].clean


@pytest.mark.parametrize("ways", [("leave",), ("depart",), ("leave", "depart")])
async def test_who_has_left_is_gone_when_the_others_go_on(tmp_path: Path, ways: tuple[str, ...]) -> None:
    """At the end of training all leave, and no plan follows from it."""

    policy = Scripted((64, 64, 64), (96, 96, 96), (96, 96, 96), (64, 64, 64))
    bench = Elastically(tmp_path, policy)
    bench.register_all()
    bench.report([record(rank, 0) for rank in (0, 1)])
    if "leave" in ways:
        bench.arbitrator.leave(1, "life-1")
    if "depart" in ways:
        bench.arbitrator.depart(1)
    await bench.closes(0, 2)
    assert bench.plan.version == 0 and not bench.lines("adopted")
    await bench.closes(1, 0, 2)
    assert bench.plan == Plan(1, (96, 0, 96))
    await bench.closes(2, 0, 2)
    assert bench.plan.version == 1, "no further one"
    bench.arbitrator.register(registration(1, "next", bench.plan))
    assert bench.plan == Plan(2, (64, 64, 64))
    bench.report([record(0, 3, plan_version=2), record(2, 3, plan_version=2)])
    bench.arbitrator.leave(0, "life-0")
    bench.arbitrator.leave(1, "next")  # its window had not begun with theirs
    await bench.arbitrator.step()
    assert len(bench.lines("kept", "plan")) == 4 and bench.plan.version == 2, "training is over for all"


async def test_workers_that_register_for_another_training_one_by_one_are_all_there(tmp_path: Path) -> None:
    bench = Elastically(tmp_path, Scripted((64, 64, 64), (64, 64, 64)))
    bench.register_all()
    await bench.closes(0, 0, 1, 2)
    for rank in range(3):
        bench.arbitrator.leave(rank, f"life-{rank}")
    for rank in (0, 2):
        bench.arbitrator.register(registration(rank, f"next-{rank}"))
        bench.arbitrator.report(f"next-{rank}", record(rank, 1))
    await bench.arbitrator.step()
    assert [line["window"] for line in bench.lines("kept")] == [0, 1]
    bench.arbitrator.register(registration(1, "next-1"))
    assert bench.plan.version == 0 and not bench.lines("adopted")


async def test_who_comes_back_before_the_next_window_keeps_its_share(tmp_path: Path) -> None:
    bench = Elastically(tmp_path, Scripted((64, 64, 64), (64, 64, 64)))
    bench.register_all()
    bench.arbitrator.depart(1)
    bench.arbitrator.register(registration(1, "next"))
    bench.report([record(rank, 0) for rank in (0, 2)])
    await bench.arbitrator.step()
    assert bench.lines("kept", "plan") == [], "it is waited for"
    bench.arbitrator.report("next", record(1, 0))
    await bench.arbitrator.step()
    bench.now_s += 5.0
    await bench.closes(1, 0, 2)
    assert [line["rank"] for line in bench.lines("lease_lost")] == [1], "it is silent, and not gone"
    assert [line["window"] for line in bench.lines("kept")] == [0, 1]
    assert bench.plan.version == 0 and not bench.lines("adopted")


async def test_a_restarted_arbitrator_knows_who_is_gone(tmp_path: Path) -> None:
    first = Elastically(tmp_path, Scripted())
    first.arbitrator._journal.write("started", policy="scripted", workers=3, restarts=0)
    first.register_all()
    first.arbitrator._journal.write("lost", role="worker", slot=1, incarnation="start-0", reason="")
    first.arbitrator.lose(1)
    assert first.plan == Plan(1, (96, 0, 96))

    policy = Scripted((100, 92, 92), (64, 64, 64))
    again = Elastically(tmp_path, policy)
    again.arbitrator.lose(1)  # the coordinator says so again
    assert again.plan == first.plan and len(again.lines("adopted")) == 1
    with pytest.raises(StaleIncarnationError):
        again.arbitrator.register(registration(1, plan=Plan(0, (64, 64, 64))))
    for rank in (0, 2):
        again.arbitrator.register(registration(rank, plan=first.plan))
    await again.closes(0, 0, 2)  # the first complete window: sizes stay
    await again.closes(1, 0, 2)
    assert policy.views[-1].bounds[1] == (0, 0) and again.plan == Plan(2, (100, 0, 92))
    again.arbitrator.register(registration(1, "next", again.plan))
    assert again.plan.version == 3 and all(again.plan.batch_sizes) and again.plan.global_batch == 192


def test_a_newer_plan_of_a_worker_has_nothing_for_who_is_gone_either(tmp_path: Path) -> None:
    """A worker is lost before the others have told the plan of the checkpoint that they go on from."""
    bench = Elastically(tmp_path, Scripted())
    bench.arbitrator.lose(1)
    held = Plan(17, (40, 80, 60))
    for rank in (0, 2):
        bench.arbitrator.register(registration(rank, plan=held))
    assert bench.plan == Plan(18, (72, 0, 108))


def test_the_last_worker_that_is_lost_leaves_no_plan_of_nobody(tmp_path: Path) -> None:
    bench = Elastically(tmp_path, Scripted())
    bench.register_all()
    for rank in range(3):
        bench.arbitrator.lose(rank)
    assert bench.plan == Plan(2, (0, 0, 192))
    bench.arbitrator.register(registration(0, "next", bench.plan))
    assert bench.plan == Plan(3, (192, 0, 0))


async def test_a_worker_that_is_lost_while_a_decision_is_written_down(tmp_path: Path) -> None:
    """Two plans never have one version: workers that hold different ones of them would agree on it."""

    bench = Elastically(tmp_path, Scripted((32, 64, 96)))
    bench.register_all()
    journal, begun, go_on = bench.arbitrator._journal, threading.Event(), threading.Event()
    write = journal.write

    def slowly(kind: str, **fields: Any) -> None:
        if kind == "plan":
            begun.set()
            assert go_on.wait(30)
        write(kind, **fields)

    journal.write = slowly  # type: ignore[method-assign]
    seen = []
    deciding = asyncio.create_task(bench.closes(0, 0, 1, 2))
    await asyncio.to_thread(begun.wait, 30)
    stream = bench.arbitrator.plans(0, "life-0", 0)
    bench.arbitrator.lose(1)
    seen.append(await anext(stream))
    go_on.set()
    await deciding
    assert bench.lines("plan")[0]["version"] == 1 and seen == [Plan(2, (96, 0, 96))] == [bench.plan]
    assert replay(bench.file).plan == bench.plan
    bench.arbitrator.lose(2)
    assert await anext(stream) == Plan(3, (192, 0, 0))
