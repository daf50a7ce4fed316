"""The arbitrator: from windows to plans; silent workers, restarts and refusals."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dynamix_ps.arbitrator.journal import replay
from dynamix_ps.config.schema import BatchBounds, Cluster, Elastic, Worker
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.messages import Plan
from dynamix_ps.rpc.plan_rules import LARGEST_VERSION
from dynamix_ps.rpc.refusals import (
    MalformedMessageError,
    StaleIncarnationError,
    TooManyStreamsError,
    UnknownWorkerError,
)
from tests.control_plane import config, record, registration, run_under
from tests.unit.arbitrator.service_bench import Bench, Scripted


def test_one_window_one_plan_with_the_next_version(tmp_path: Path) -> None:
    async def story() -> None:
        policy = Scripted((32, 64, 128), (33, 65, 129))
        bench = Bench(tmp_path, policy)
        bench.register_all()
        bench.report(run_under(Plan(0, (64, 64, 64)), 0)[:2])
        await bench.arbitrator.step()
        assert not policy.views
        await bench.window(0, Plan(0, (64, 64, 64)))
        await bench.arbitrator.step()
        assert bench.plan == Plan(1, (32, 64, 128))
        await bench.window(1, bench.plan)
        assert bench.plan == Plan(2, (33, 65, 129))
        assert [view.window for view in policy.views] == [0, 1]
        first, second = bench.lines("plan")
        assert (first["version"], first["batch_sizes"], first["window"]) == (1, [32, 64, 128], 0)
        assert (first["proposed"], first["reward"], first["corrected"]) == ([32, 64, 128], None, False)
        assert first["decision_ms"] >= 0
        assert second["version"] == 2

    asyncio.run(story())


def test_the_report_of_the_last_present_worker_wakes_the_arbitrator(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path, Scripted((32, 64, 128)))
        bench.register_all()
        wake, records = bench.arbitrator._wake, run_under(bench.plan, 0)
        bench.report(records[:2])
        assert not wake.is_set()
        bench.report(records[2:])
        assert wake.is_set()
        await bench.arbitrator.step()
        bench.arbitrator.leave(2, "life-2")
        await bench.arbitrator.step()
        wake.clear()
        records = run_under(bench.plan, 1)
        bench.report(records[:1])
        assert not wake.is_set()
        bench.report(records[1:2])
        assert wake.is_set()

    asyncio.run(story())


def test_the_journal_knows_a_plan_before_any_worker_does(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path, Scripted((32, 64, 128)))
        bench.register_all()
        seen: list[int] = []

        async def follow() -> None:
            async for plan in bench.arbitrator.plans(0, "life-0", 0):
                seen.append(len(bench.lines("plan")))
                assert plan.version == 1
                return

        follower = asyncio.create_task(follow())
        await asyncio.sleep(0)
        await bench.window(0, Plan(0, (64, 64, 64)))
        await follower
        assert seen == [1]

    asyncio.run(story())


def test_equal_sizes_are_a_decision_but_no_new_version(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path, Scripted((64, 64, 64)))
        bench.register_all()
        await bench.window(0, Plan(0, (64, 64, 64)))
        assert bench.plan.version == 0
        assert [line["window"] for line in bench.lines("kept")] == [0]
        assert replay(bench.file).decisions == 1

    asyncio.run(story())


@pytest.mark.parametrize(("comm", "ring"), [("byteps", False), ("gloo", True)])
def test_a_policy_is_told_whether_gradients_go_around_a_ring(tmp_path: Path, comm: str, ring: bool) -> None:
    async def story() -> None:
        policy = Scripted((64, 64, 64))
        bench = Bench(tmp_path, policy, config().model_copy(update={"comm": comm}))
        bench.register_all()
        await bench.window(0, Plan(0, (64, 64, 64)))
        assert [view.ring for view in policy.views] == [ring]

    asyncio.run(story())


def test_the_guard_stands_between_policy_and_workers(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path, Scripted((math.nan, 1e9, -3), (1,)))
        bench.register_all()
        await bench.window(0, Plan(0, (64, 64, 64)))
        assert bench.plan.batch_sizes == (64, 1024, 32)
        line = bench.lines("plan")[0]
        assert line["corrected"]
        assert line["proposed"] == [None, 1e9, -3]
        await bench.window(1, bench.plan)
        assert bench.plan.batch_sizes == (64, 1024, 32)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("changes", "policy", "expected"),
    [
        ({}, "proportional", (100, 48, 40)),
        ({"batch": BatchBounds(micro_batches=True)}, "proportional", (100, 100, 100)),
        ({}, "static", (100, 100, 100)),  # the sizes of the cluster file are asked for by name
    ],
)
def test_plans_stay_within_what_fits_into_memory_at_once(
    tmp_path: Path, changes: dict[str, Any], policy: str, expected: tuple[int, ...]
) -> None:
    async def story() -> None:
        asked = config(policy=policy)
        workers = tuple(
            one.model_copy(update={"at_once": at_once})
            for one, at_once in zip(asked.cluster.workers, (None, None, 40), strict=True)
        )
        cluster = asked.cluster.model_copy(update={"workers": workers})
        wanted = Scripted((100, 100, 100))
        bench = Bench(tmp_path, wanted, asked.model_copy(update={"cluster": cluster, **changes}))
        bench.register_all()
        first, second, third = run_under(Plan(0, (64, 64, 64)), 0)
        assert second is not None
        bench.report([first, dataclasses.replace(second, at_once=48.0), third])
        await bench.arbitrator.step()
        assert bench.plan.batch_sizes == expected
        assert [high for _, high in wanted.views[0].bounds] == (
            [1024, 1024, 1024] if expected == (100, 100, 100) else [1024, 48, 40]
        )

    asyncio.run(story())


@pytest.mark.parametrize(("told", "expected"), [({}, 192), ({"lr_batch": 256.0}, 256)])
def test_workers_that_resume_say_which_global_batch_the_learning_rate_is_for(
    tmp_path: Path, told: dict[str, float], expected: int
) -> None:
    async def story() -> None:
        wanted = Scripted((64, 64, 64))
        bench = Bench(tmp_path, wanted)
        bench.register_all()
        bench.report(run_under(Plan(0, (64, 64, 64)), 0, **told))
        await bench.arbitrator.step()
        assert [view.reference_batch for view in wanted.views] == [expected]

    asyncio.run(story())


def test_what_fits_at_once_is_no_bound_below_the_smallest_size(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path, Scripted((100, 100, 100)))
        bench.register_all()
        bench.report(run_under(Plan(0, (64, 64, 64)), 0, at_once=8.0))
        await bench.arbitrator.step()
        assert bench.plan.batch_sizes == (32, 32, 32)

    asyncio.run(story())


def test_a_policy_that_fails_keeps_the_sizes_and_says_so(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path, Scripted(ZeroDivisionError("oops"), (32, 32, 32)))
        bench.register_all()
        await bench.window(0, Plan(0, (64, 64, 64)))
        assert bench.plan.version == 0
        assert "ZeroDivisionError('oops')" in bench.lines("degraded")[0]["detail"]
        await bench.window(1, bench.plan)
        assert bench.plan == Plan(1, (32, 32, 32))

    asyncio.run(story())


def test_observe_decides_and_publishes_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path, Scripted((32, 64, 128), (64, 64, 64)), config(mode="observe"))
        bench.register_all()
        await bench.window(0, Plan(0, (64, 64, 64)))
        await bench.window(1, Plan(0, (64, 64, 64)))
        assert bench.plan == Plan(0, (64, 64, 64))
        assert bench.lines("plan") == []
        assert [line["batch_sizes"] for line in bench.lines("observed")] == [[32, 64, 128]]
        assert replay(bench.file).plan is None

    asyncio.run(story())


def test_a_silent_worker_is_named_and_no_longer_waited_for(tmp_path: Path) -> None:
    async def story() -> None:
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

    asyncio.run(story())


def test_the_states_of_all_workers_are_not_made_for_each_of_them(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Scripted())
    bench.register_all()
    told = bench.arbitrator.heartbeat(0, "life-0", 7)
    assert bench.arbitrator.heartbeat(1, "life-1", 8) is told
    bench.now_s += 1.0
    assert [peer.iteration for peer in bench.arbitrator.heartbeat(2, "life-2", 9)] == [7, 8, 9]


def test_nobody_alive_nothing_decided(tmp_path: Path) -> None:
    async def story() -> None:
        policy = Scripted()
        bench = Bench(tmp_path, policy)
        await bench.arbitrator.step()
        bench.register_all()
        bench.report(run_under(Plan(0, (64, 64, 64)), 0)[:1])
        bench.now_s += 100
        await bench.arbitrator.step()
        assert policy.views == []

    asyncio.run(story())


def test_who_left_is_not_waited_for(tmp_path: Path) -> None:
    async def story() -> None:
        policy = Scripted((32, 64, 128))
        bench = Bench(tmp_path, policy)
        bench.register_all()
        bench.arbitrator.leave(2, "life-2")
        bench.report(run_under(Plan(0, (64, 64, 64)), 0)[:2])
        await bench.arbitrator.step()
        assert len(policy.views) == 1

    asyncio.run(story())


def test_new_versions_are_above_all_that_anybody_has_seen(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path, Scripted((32, 64, 128)))
        held = Plan(17, (70, 80, 90))
        bench.register_all(held)
        assert bench.plan == held
        assert bench.arbitrator.register(registration(0)) == held
        await bench.window(0, held)
        assert bench.plan == Plan(18, (32, 64, 128))

    asyncio.run(story())


def test_restart_resumes_holds_one_full_window_and_decides_again(tmp_path: Path) -> None:
    async def story() -> None:
        first = Bench(tmp_path, Scripted((32, 64, 128)))
        task = asyncio.create_task(first.arbitrator.run())
        first.register_all()
        first.report(run_under(Plan(0, (64, 64, 64)), 0))
        while first.plan.version == 0:
            await asyncio.sleep(0)
        task.cancel()

        policy = Scripted((50, 50, 50))
        again = Bench(tmp_path, policy)
        assert again.plan == Plan(1, (32, 64, 128))
        with pytest.raises(UnknownWorkerError):
            again.report(run_under(again.plan, 1))
        again.register_all(Plan(0, (64, 64, 64)))
        assert again.plan.version == 1
        again.report(run_under(Plan(0, (64, 64, 64)), 0))  # repeated: decided before the restart
        await again.arbitrator.step()
        await again.window(1, again.plan)
        assert policy.views == []
        assert again.plan.version == 1
        await again.window(2, again.plan)
        assert again.plan == Plan(2, (50, 50, 50))
        windows = [line["window"] for line in again.lines("plan", "kept")]
        assert windows == [0, 1, 2]

    asyncio.run(story())


def test_refusals_change_nothing_and_are_written_once(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path, Scripted())
        bench.register_all()
        bench.arbitrator.register(registration(0, "next"))
        with pytest.raises(StaleIncarnationError):
            bench.arbitrator.report("life-0", record(0, 0))
        with pytest.raises(MalformedMessageError, match="got 2 sizes, expected 3"):
            bench.arbitrator.register(registration(1, plan=Plan(9, (1, 2))))
        with pytest.raises(MalformedMessageError, match="rank: got 3"):
            bench.arbitrator.register(registration(3))
        assert bench.plan.version == 0
        for number in range(1000):
            bench.arbitrator.refused(f"reason {number % 2}")
        assert [line["detail"] for line in bench.lines("rejected")] == ["reason 0", "reason 1"]
        bench.arbitrator.close()
        assert bench.lines("stopped")[0]["refused"] == 1000

    asyncio.run(story())


def test_a_stranger_with_many_reasons_cannot_fill_the_disk(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Scripted())
    for number in range(5000):
        bench.arbitrator.refused(f"reason {number}")
    assert len(bench.lines("rejected")) <= 100
    bench.arbitrator.close()
    assert bench.lines("stopped")[0]["refused"] == 5000


def test_a_journal_of_another_cluster_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_text('{"kind": "plan", "version": 1, "window": 0, "batch_sizes": [1, 2]}\n')
    with pytest.raises(EnvironmentNotReady, match="2 sizes, but the cluster file has 3 workers"):
        Bench(tmp_path, Scripted())


def test_a_slow_reader_of_plans_skips_to_the_newest(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path, Scripted((32, 64, 128), (33, 64, 128), (34, 64, 128)))
        bench.register_all()
        stream = bench.arbitrator.plans(0, "life-0", 0)
        for number in range(3):
            await bench.window(number, bench.plan)
        assert await take(stream) == Plan(3, (34, 64, 128))

    async def take(stream: AsyncIterator[Plan]) -> Plan:
        async for plan in stream:
            return plan
        raise AssertionError("the stream ended")

    asyncio.run(story())


def test_a_worker_has_only_so_many_streams_of_plans(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path, Scripted())
        bench.register_all()
        followers = [asyncio.create_task(anext(bench.arbitrator.plans(0, "life-0", 0))) for _ in range(4)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyStreamsError, match="worker 0 has 4 streams"):
            await anext(bench.arbitrator.plans(0, "life-0", 0))
        other = asyncio.create_task(anext(bench.arbitrator.plans(1, "life-1", 0)))
        followers[0].cancel()
        await asyncio.wait(followers[:1])
        again = asyncio.create_task(anext(bench.arbitrator.plans(0, "life-0", 0)))
        await asyncio.sleep(0)
        assert not other.done() and not again.done()
        for task in (*followers, other, again):
            task.cancel()
        await asyncio.wait((*followers, other, again))

    asyncio.run(story())


def test_a_plan_far_ahead_of_what_others_hold_is_not_taken_over(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Scripted())
    bench.register_all()
    for version in (LARGEST_VERSION, 2):
        bench.arbitrator.register(registration(0, f"other-{version}", Plan(version, (32, 32, 32))))
        assert bench.plan == Plan(0, (64, 64, 64))
    bench.arbitrator.register(registration(1, "another", Plan(1, (40, 40, 40))))
    assert bench.plan == Plan(2, (32, 32, 32)), "one ahead of what another worker holds, and so is this one"
    assert replay(bench.file).newest_version == 2


def test_workers_that_outlived_a_journal_go_on_from_what_they_hold(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path, Scripted((32, 64, 128)))
        held = Plan(9, (70, 80, 90))
        for rank, plan in enumerate((held, Plan(8, (50, 50, 50)), held)):  # the newest had not reached worker 1
            bench.arbitrator.register(registration(rank, plan=plan))
        assert bench.plan == held
        await bench.window(0, Plan(8, (50, 50, 50)))
        assert bench.plan == Plan(10, (32, 64, 128))

    asyncio.run(story())


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        (Plan(LARGEST_VERSION + 1, (64, 64, 64)), "plan.version: got 16777216"),
        (Plan(0, (64, 64)), "plan.batch_sizes: got 2 sizes, expected 3"),
        (Plan(0, (64, 64, 31)), "plan.batch_sizes: got 31 for worker 2, expected 32..1024"),
        (Plan(0, (64, 1025, 64)), "plan.batch_sizes: got 1025 for worker 1, expected 32..1024"),
    ],
)
def test_a_worker_with_an_impossible_plan_is_refused(tmp_path: Path, plan: Plan, problem: str) -> None:
    bench = Bench(tmp_path, Scripted())
    with pytest.raises(MalformedMessageError, match=problem):
        bench.arbitrator.register(registration(0, plan=plan))
    assert bench.lines("registered") == []


def test_a_record_of_a_plan_that_its_worker_cannot_hold_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Scripted())
    bench.register_all()
    bench.arbitrator.register(registration(1, plan=Plan(9, (64, 64, 64))))  # alone with it
    with pytest.raises(MalformedMessageError, match=r"plan_version: got 1, expected 0\.\.0"):
        bench.arbitrator.report("life-0", record(0, 0, plan_version=1))
    bench.arbitrator.report("life-1", record(1, 0, plan_version=9))
    with pytest.raises(MalformedMessageError, match="batch_size: got 1025, expected at most 1024"):
        bench.arbitrator.report("life-0", record(0, 0, batch_size=1025))


@pytest.mark.parametrize(("keep", "three"), [("global", (43, 43, 42, 0)), ("local", (64, 64, 64, 0))])
def test_a_worker_that_comes_later_gets_its_share_when_it_registers(
    tmp_path: Path, keep: Any, three: tuple[int, ...]
) -> None:
    """Until then nobody waits for it, and no policy can give it anything; a restarted arbitrator knows both."""

    async def story() -> None:
        workers = (*(Worker(batch=64),) * 2, *(Worker(batch=64, later=True),) * 2)
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

    asyncio.run(story())


class Elastically(Bench):
    """Three workers that may come and go. All report sizes, and other values are of no interest."""

    def __init__(
        self, folder: Path, policy: Scripted, keep: Any = "global", sizes: tuple[int, ...] = (64,) * 3
    ) -> None:
        elastic = {"elastic": Elastic(min_workers=1, keep=keep)}
        cluster = {"cluster": Cluster(workers=tuple(Worker(batch=size) for size in sizes))}
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
def test_a_lost_worker_has_nothing_in_plans_until_it_is_back(
    tmp_path: Path, keep: Any, two: tuple[int, ...], three: tuple[int, ...]
) -> None:
    async def story() -> None:
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

    asyncio.run(story())


@pytest.mark.parametrize("ways", [("leave",), ("depart",), ("leave", "depart")])
def test_who_has_left_is_gone_when_the_others_go_on(tmp_path: Path, ways: tuple[str, ...]) -> None:
    """At the end of training all leave, and no plan follows from it."""

    async def story() -> None:
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

    asyncio.run(story())


def test_workers_that_register_for_another_training_one_by_one_are_all_there(tmp_path: Path) -> None:
    async def story() -> None:
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

    asyncio.run(story())


def test_who_comes_back_before_the_next_window_keeps_its_share(tmp_path: Path) -> None:
    async def story() -> None:
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

    asyncio.run(story())


def test_a_restarted_arbitrator_knows_who_is_gone(tmp_path: Path) -> None:
    async def story() -> None:
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

    asyncio.run(story())


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


def test_a_worker_that_is_lost_while_a_decision_is_written_down(tmp_path: Path) -> None:
    """Two plans never have one version: workers that hold different ones of them would agree on it."""

    async def story() -> None:
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

    asyncio.run(story())
