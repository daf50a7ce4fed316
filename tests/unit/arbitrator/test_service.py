"""The arbitrator: from windows to plans; restarts and refusals."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from dynamix_ps.arbitrator.journal import replay
from dynamix_ps.config.schema import BatchBounds
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.messages import LARGEST_VERSION, Plan
from dynamix_ps.rpc.refusals import (
    MalformedMessageError,
    StaleIncarnationError,
    TooManyStreamsError,
    UnknownWorkerError,
)
from tests.control_plane import config, record, registration, run_under
from tests.unit.arbitrator.service_bench import Bench, Scripted


async def test_one_window_one_plan_with_the_next_version(tmp_path: Path) -> None:
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


async def test_the_report_of_the_last_present_worker_wakes_the_arbitrator(tmp_path: Path) -> None:
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


async def test_the_journal_knows_a_plan_before_any_worker_does(tmp_path: Path) -> None:
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


async def test_equal_sizes_are_a_decision_but_no_new_version(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Scripted((64, 64, 64)))
    bench.register_all()
    await bench.window(0, Plan(0, (64, 64, 64)))
    assert bench.plan.version == 0
    assert [line["window"] for line in bench.lines("kept")] == [0]
    assert replay(bench.file).decisions == 1


@pytest.mark.parametrize(("comm", "ring"), [("byteps", False), ("gloo", True)])
async def test_a_policy_is_told_whether_gradients_go_around_a_ring(tmp_path: Path, comm: str, ring: bool) -> None:
    policy = Scripted((64, 64, 64))
    bench = Bench(tmp_path, policy, config().model_copy(update={"comm": comm}))
    bench.register_all()
    await bench.window(0, Plan(0, (64, 64, 64)))
    assert [view.ring for view in policy.views] == [ring]


async def test_the_guard_stands_between_policy_and_workers(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Scripted((math.nan, 1e9, -3), (1,)))
    bench.register_all()
    await bench.window(0, Plan(0, (64, 64, 64)))
    assert bench.plan.batch_sizes == (64, 1024, 32)
    line = bench.lines("plan")[0]
    assert line["corrected"]
    assert line["proposed"] == [None, 1e9, -3]
    await bench.window(1, bench.plan)
    assert bench.plan.batch_sizes == (64, 1024, 32)


@pytest.mark.parametrize(
    ("changes", "policy", "expected"),
    [
        ({}, "proportional", (100, 48, 40)),
        ({"batch": BatchBounds(micro_batches=True)}, "proportional", (100, 100, 100)),
        ({}, "static", (100, 100, 100)),  # the sizes of the cluster file are asked for by name
    ],
)
async def test_plans_stay_within_what_fits_into_memory_at_once(
    tmp_path: Path, changes: dict[str, Any], policy: str, expected: tuple[int, ...]
) -> None:
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


@pytest.mark.parametrize(("told", "expected"), [({}, 192), ({"lr_batch": 256.0}, 256)])
async def test_workers_that_resume_say_which_global_batch_the_learning_rate_is_for(
    tmp_path: Path, told: dict[str, float], expected: int
) -> None:
    wanted = Scripted((64, 64, 64))
    bench = Bench(tmp_path, wanted)
    bench.register_all()
    bench.report(run_under(Plan(0, (64, 64, 64)), 0, **told))
    await bench.arbitrator.step()
    assert [view.reference_batch for view in wanted.views] == [expected]


async def test_what_fits_at_once_is_no_bound_below_the_smallest_size(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Scripted((100, 100, 100)))
    bench.register_all()
    bench.report(run_under(Plan(0, (64, 64, 64)), 0, at_once=8.0))
    await bench.arbitrator.step()
    assert bench.plan.batch_sizes == (32, 32, 32)


async def test_a_policy_that_fails_keeps_the_sizes_and_says_so(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Scripted(ZeroDivisionError("oops"), (32, 32, 32)))
    bench.register_all()
    await bench.window(0, Plan(0, (64, 64, 64)))
    assert bench.plan.version == 0
    assert "ZeroDivisionError('oops')" in bench.lines("degraded")[0]["detail"]
    await bench.window(1, bench.plan)
    assert bench.plan == Plan(1, (32, 32, 32))


async def test_windows_that_nobody_can_decide_are_told_once(tmp_path: Path) -> None:
    """Worker 2 reports none, and windows are shorter than a lease by far."""

    bench = Bench(tmp_path, Scripted())
    bench.register_all()
    for number in range(60):
        bench.now_s += 0.1
        bench.report(run_under(bench.plan, number)[:2])
        bench.arbitrator.heartbeat(2, "life-2", 20 * number)
        await bench.arbitrator.step()
    (told,) = bench.lines("degraded")
    assert told["what"] == "decisions"
    assert told["detail"].startswith("none for 10 windows, so batch sizes stay as they are: the newest window is ")
    assert told["detail"].endswith(", and worker 2 has reported none")


async def test_the_data_bound_the_sizes_together(tmp_path: Path) -> None:
    policy = Scripted((1024, 512, 512), (100, 50, 50), (1024, 512, 512))
    bench = Bench(tmp_path, policy)
    bench.register_all()
    await bench.window(0, bench.plan, data_size=400.0)
    assert bench.plan.batch_sizes == (200, 100, 100) and policy.views[0].largest_total == 400
    await bench.window(1, bench.plan, data_size=400.0)
    assert bench.plan.batch_sizes == (100, 50, 50)
    await bench.window(2, bench.plan)
    assert bench.plan.batch_sizes == (1024, 512, 512) and math.isnan(policy.views[2].largest_total)


async def test_observe_decides_and_publishes_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Scripted((32, 64, 128), (64, 64, 64)), config(mode="observe"))
    bench.register_all()
    await bench.window(0, Plan(0, (64, 64, 64)))
    await bench.window(1, Plan(0, (64, 64, 64)))
    assert bench.plan == Plan(0, (64, 64, 64))
    assert bench.lines("plan") == []
    assert [line["batch_sizes"] for line in bench.lines("observed")] == [[32, 64, 128]]
    assert replay(bench.file).plan is None


def test_the_states_of_all_workers_are_not_made_for_each_of_them(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Scripted())
    bench.register_all()
    told = bench.arbitrator.heartbeat(0, "life-0", 7)
    assert bench.arbitrator.heartbeat(1, "life-1", 8) is told
    bench.now_s += 1.0
    assert [peer.iteration for peer in bench.arbitrator.heartbeat(2, "life-2", 9)] == [7, 8, 9]


async def test_new_versions_are_above_all_that_anybody_has_seen(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Scripted((32, 64, 128)))
    held = Plan(17, (70, 80, 90))
    bench.register_all(held)
    assert bench.plan == held
    assert bench.arbitrator.register(registration(0)) == held
    await bench.window(0, held)
    assert bench.plan == Plan(18, (32, 64, 128))


async def test_restart_resumes_holds_one_full_window_and_decides_again(tmp_path: Path) -> None:
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


async def test_refusals_change_nothing_and_are_written_once(tmp_path: Path) -> None:
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


async def test_a_slow_reader_of_plans_skips_to_the_newest(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Scripted((32, 64, 128), (33, 64, 128), (34, 64, 128)))
    bench.register_all()
    stream = bench.arbitrator.plans(0, "life-0", 0)
    for number in range(3):
        await bench.window(number, bench.plan)
    assert await anext(stream) == Plan(3, (34, 64, 128))


async def test_a_worker_has_only_so_many_streams_of_plans(tmp_path: Path) -> None:
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


def test_a_plan_far_ahead_of_what_others_hold_is_not_taken_over(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Scripted())
    bench.register_all()
    for version in (LARGEST_VERSION, 2):
        bench.arbitrator.register(registration(0, f"other-{version}", Plan(version, (32, 32, 32))))
        assert bench.plan == Plan(0, (64, 64, 64))
    bench.arbitrator.register(registration(1, "another", Plan(1, (40, 40, 40))))
    assert bench.plan == Plan(2, (32, 32, 32)), "one ahead of what another worker holds, and so is this one"
    assert replay(bench.file).newest_version == 2


async def test_workers_that_outlived_a_journal_go_on_from_what_they_hold(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Scripted((32, 64, 128)))
    held = Plan(9, (70, 80, 90))
    for rank, plan in enumerate((held, Plan(8, (50, 50, 50)), held)):  # the newest had not reached worker 1
        bench.arbitrator.register(registration(rank, plan=plan))
    assert bench.plan == held
    await bench.window(0, Plan(8, (50, 50, 50)))
    assert bench.plan == Plan(10, (32, 64, 128))


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
