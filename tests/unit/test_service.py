from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dynamix_ps.arbitrator.journal import Journal, replay
from dynamix_ps.arbitrator.service import Arbitrator
from dynamix_ps.config import Config, Safety
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.messages import Flow, Plan, RoleReport, SystemSample, WindowRecord
from dynamix_ps.policy.base import Decision, Policy, View
from dynamix_ps.policy.choose import make_policy
from dynamix_ps.policy.safety import SafetyNet
from dynamix_ps.report.state import RunState
from dynamix_ps.rpc.refusals import MalformedMessageError, StaleIncarnationError, UnknownWorkerError
from tests.control_plane import config, record, registration, run_under


class Scripted:
    """Answers with prepared sizes, or raises them; remembers what it was asked."""

    name = "scripted"

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.views: list[View] = []

    def decide(self, view: View) -> Decision:
        self.views.append(view)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Decision(answer)


class Bench:
    """An arbitrator without a network, on a clock of our own."""

    def __init__(self, folder: Path, policy: Policy, cluster: Config | None = None, exporter: Any = None) -> None:
        self.file = folder / "journal.jsonl"
        self.now_s = 100.0
        self.arbitrator = Arbitrator(
            cluster or config(),
            policy,
            Journal(self.file),
            replay(self.file),
            folder / "policy.npz",
            lambda: self.now_s,
            exporter,
        )

    def register_all(self, plan: Plan | None = None) -> None:
        for rank in range(3):
            self.arbitrator.register(registration(rank, plan=plan))

    def report(self, records: list[WindowRecord | None]) -> None:
        for item in records:
            if item is not None:
                self.arbitrator.report(f"life-{item.rank}", item)

    async def window(self, number: int, plan: Plan) -> None:
        self.report(run_under(plan, number))
        await self.arbitrator.step()

    async def learned(self) -> None:
        """Wait for the update that is under way, if any."""
        if self.arbitrator._learning is not None:
            await asyncio.wait_for(self.arbitrator._learning, 30)

    @property
    def plan(self) -> Plan:
        return self.arbitrator._plan

    def lines(self, *kinds: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.file.read_text().splitlines()]
        return [line for line in lines if line["kind"] in kinds]


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
        bench.arbitrator.heartbeat(2, "life-2", 7)
        assert [line["rank"] for line in bench.lines("lease_back")] == [2]

    asyncio.run(story())


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


def learning_cluster(windows_per_update: int) -> Config:
    return config(policy="ppo", file="fresh", learn=True, windows_per_update=windows_per_update)


def test_ppo_learns_is_saved_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    async def windows(bench: Bench, numbers: range) -> None:
        for number in numbers:
            await bench.window(number, bench.plan)
            await bench.learned()

    async def story() -> None:
        cluster = learning_cluster(2)
        bench = Bench(tmp_path, make_policy(cluster, 3, np.random.default_rng(0)), cluster)
        bench.register_all()
        await windows(bench, range(7))
        updates = [line["updates"] for line in bench.lines("update")]
        assert updates in ([1, 2], [1, 2, 3])
        assert all(line["accepted"] for line in bench.lines("update"))
        rewards = [line["reward"] for line in bench.lines("plan", "kept")]
        assert rewards[0] is None
        assert None not in rewards[1:]

        resume = tmp_path / "policy.npz"
        bench = Bench(tmp_path, make_policy(cluster, 3, np.random.default_rng(1), resume), cluster)
        bench.register_all(bench.plan)
        await windows(bench, range(7, 13))
        again = [line["updates"] for line in bench.lines("update")]
        assert again == list(range(1, len(again) + 1))
        assert len(again) > len(updates)

    asyncio.run(story())


class Student(Scripted):
    """Learns after every window; `work` is the update. Only `begun` and `finished` may touch what decides."""

    update_due = True

    def __init__(self, *answers: Any, work: Callable[[], Any] = lambda: None) -> None:
        super().__init__(*answers)
        self.work = work
        self.begun = 0
        self.finished: list[Any] = []

    def begin_update(self) -> Callable[[], Any]:
        self.begun += 1
        return self.work

    def finish_update(self, finished: Any) -> dict[str, Any]:
        self.finished.append(finished)
        return {"accepted": 1.0}

    def save(self, file: Path) -> None:
        file.write_bytes(b"weights")


def test_decisions_and_heartbeats_go_on_while_the_policy_learns(tmp_path: Path) -> None:
    started, may_end = threading.Event(), threading.Event()

    def work() -> str:
        started.set()
        assert may_end.wait(30)
        return f"learned in {threading.current_thread() is threading.main_thread()}"

    async def story() -> None:
        policy = Student(*[(32 + number, 64, 128) for number in range(6)], work=work)
        bench = Bench(tmp_path, policy)
        bench.register_all()
        for number in range(5):
            await bench.window(number, bench.plan)
        while not started.is_set():
            await asyncio.sleep(0.001)
        assert bench.plan == Plan(5, (36, 64, 128))
        assert len(bench.arbitrator.heartbeat(1, "life-1", 5)) == 3
        assert (policy.begun, policy.finished, bench.lines("update")) == (1, [], [])  # one at a time
        may_end.set()
        await bench.learned()
        assert policy.finished == ["learned in False"]
        assert (tmp_path / "policy.npz").read_bytes() == b"weights"
        await bench.window(5, bench.plan)
        await bench.learned()
        assert len(bench.lines("update")) == 2

    asyncio.run(story())


def test_an_arbitrator_that_is_stopped_leaves_no_update_behind(tmp_path: Path) -> None:
    may_end = threading.Event()

    async def story() -> None:
        policy = Student((32, 64, 128), work=lambda: may_end.wait(30))
        bench = Bench(tmp_path, policy)
        task = asyncio.create_task(bench.arbitrator.run())
        bench.register_all()
        bench.report(run_under(Plan(0, (64, 64, 64)), 0))
        while not policy.begun:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait((task,), timeout=30)
        assert task.done()
        may_end.set()
        assert (policy.finished, bench.lines("update")) == ([], [])

    asyncio.run(story())


@pytest.mark.parametrize(
    ("fails", "what"),
    [({"update": ValueError("singular")}, "policy"), ({"save": OSError("disk full")}, "policy file")],
)
def test_learning_that_fails_is_said_and_decisions_go_on(
    tmp_path: Path, fails: dict[str, Exception], what: str
) -> None:
    def work() -> None:
        if "update" in fails:
            raise fails["update"]

    class Failing(Student):
        def save(self, file: Path) -> None:
            raise fails["save"]

    async def story() -> None:
        bench = Bench(tmp_path, Failing((32, 64, 128), (33, 64, 128), work=work))
        bench.register_all()
        for number in range(2):
            await bench.window(number, bench.plan)
            await bench.learned()
        assert bench.plan == Plan(2, (33, 64, 128))
        assert [line["what"] for line in bench.lines("degraded")] == [what, what]

    asyncio.run(story())


def test_flagged_and_mixed_windows_are_not_learned_from(tmp_path: Path) -> None:
    async def story() -> None:
        cluster = learning_cluster(1)
        bench = Bench(tmp_path, make_policy(cluster, 3, np.random.default_rng(0)), cluster)
        bench.register_all()
        await bench.window(0, bench.plan)
        for number in range(1, 9, 2):
            bench.report(run_under(bench.plan, number, flagged=True))
            await bench.arbitrator.step()
            mixed = run_under(bench.plan, number + 1)
            mixed[0] = record(0, number + 1, plan_version=-1)
            bench.report(mixed)
            await bench.arbitrator.step()
            await bench.learned()
        assert bench.lines("update") == []
        for number in range(9, 12):
            await bench.window(number, bench.plan)
            await bench.learned()
        assert bench.lines("update")

    asyncio.run(story())


def test_what_the_safety_net_does_is_written_down(tmp_path: Path) -> None:
    async def story() -> None:
        cluster = config()
        net = SafetyNet(Scripted((1,), *[(100, 100, 100)] * 3), 3, Safety(rest_windows=2))
        bench = Bench(tmp_path, net, cluster)
        bench.register_all()
        for number in range(4):
            await bench.window(number, bench.plan)
        (line,) = bench.lines("fallback")
        assert line["window"] == 0
        assert "proportional shares for 2 windows: its answer was no sizes" in line["detail"]
        assert [line["fallback"] for line in bench.lines("plan", "kept")] == [True, True, False, False]
        state = RunState(3)
        for line in bench.lines("plan", "kept", "fallback"):
            state.apply("arbitrator", line)
        assert state.safety_net == "once, 2 windows"

    asyncio.run(story())


def role_reports(time_s: float, pushed: float, push_busy: float = 0.05) -> list[RoleReport]:
    """Three workers with one connection each to one server; worker 2 has data on the way for longer than others."""
    ends = [(f"10.0.0.{rank}:4000", "10.0.9.9:9000") for rank in range(3)]

    def role(name: str, rank: int, *flows: Flow) -> RoleReport:
        system = SystemSample(cpu_ratio=0.5)
        return RoleReport(name, name.partition("-")[0], rank, "host", 1, time_s, "ebpf", 0.0, flows, system)

    busy = (0.05, 0.05, push_busy)
    workers = [
        role(f"worker-{rank}", rank, Flow(*ends[rank], pushed, 0.0, 0.0, busy_s=busy[rank] * time_s))
        for rank in range(3)
    ]
    theirs = (Flow(remote, local, 0.0, pushed, 0.0, busy_s=0.0) for local, remote in ends)
    return [*workers, role("server-0", -1, *theirs)]


def test_a_policy_sees_links_and_servers_and_the_journal_keeps_them(tmp_path: Path) -> None:
    async def story() -> None:
        policy = Scripted(*[(64, 64, 64)] * 2)
        bench = Bench(tmp_path, policy)
        bench.register_all()
        for time_s in (1.0, 2.0):
            for report in role_reports(time_s, 1000 * time_s, push_busy=0.7):
                bench.arbitrator.observe(report)
        quick = {"compute_s": 0.2, "input_s": 0.1}
        bench.report(run_under(bench.plan, 0, **quick))
        await bench.arbitrator.step()
        (view,) = policy.views
        assert [link.push_bytes_per_s for link in view.links] == [1000, 1000, 1000]
        assert [link.slow for link in view.links] == ["", "", "link"]
        assert [(server.name, server.push_bytes_per_s) for server in view.servers] == [("server-0", 3000)]
        (line,) = bench.lines("links")
        assert line["window"] == 0
        assert line["links"][2] | {"slow": "link", "rank": 2, "push_busy": pytest.approx(0.7)} == line["links"][2]
        assert line["links"][2]["push_rtt_s"] is None
        assert line["servers"][0]["system"]["cpu_ratio"] == 0.5

        for report in role_reports(3.0, 2000 + 5000):
            bench.arbitrator.observe(report)
        await bench.window(1, bench.plan)
        assert policy.views[1].links[2].push_bytes_per_s == 5000  # since the window before, not since the beginning
        assert replay(bench.file).window == 1

    asyncio.run(story())


def test_without_reports_of_roles_there_are_no_links_and_no_line(tmp_path: Path) -> None:
    async def story() -> None:
        policy = Scripted((64, 64, 64))
        bench = Bench(tmp_path, policy)
        bench.register_all()
        await bench.window(0, bench.plan)
        assert (policy.views[0].links, policy.views[0].servers) == ((), ())
        assert not bench.lines("links")

    asyncio.run(story())


def test_a_report_of_a_worker_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Scripted())
    stranger = dataclasses.replace(role_reports(1.0, 0.0)[0], rank=3)
    with pytest.raises(MalformedMessageError, match=r"rank: got 3, expected 0\.\.2"):
        bench.arbitrator.observe(stranger)


class Shown:
    """An exporter that remembers, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.windows: list[tuple[int, float | None]] = []
        self.degradations: list[str] = []

    def observe(self, view: View, decision: Decision, decision_s: float | None = None) -> None:
        assert decision_s is not None and decision_s > 0
        self.windows.append((view.window, decision.reward))
        if self.error:
            raise self.error

    def degraded(self, what: str) -> None:
        self.degradations.append(what)


def test_every_closed_window_is_shown_to_the_exporter(tmp_path: Path) -> None:
    async def story() -> None:
        shown = Shown()
        bench = Bench(tmp_path, Scripted((64, 64, 64), ValueError("no idea")), exporter=shown)
        bench.register_all()
        await bench.window(0, bench.plan)
        await bench.window(1, bench.plan)
        assert shown.windows == [(0, None), (1, None)]
        assert shown.degradations == ["policy"]

    asyncio.run(story())


def test_an_exporter_that_fails_is_degraded_once_and_decisions_go_on(tmp_path: Path) -> None:
    async def story() -> None:
        shown = Shown(RuntimeError("port gone"))
        bench = Bench(tmp_path, Scripted(*[(64, 64, 64)] * 3), exporter=shown)
        bench.register_all()
        for number in range(3):
            await bench.window(number, bench.plan)
        assert shown.windows == [(0, None)]
        (line,) = bench.lines("degraded")
        assert line["what"] == "prometheus"
        assert "port gone" in line["detail"]
        assert len(bench.lines("kept")) == 3

    asyncio.run(story())
