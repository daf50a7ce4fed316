"""The arbitrator with a learning policy and the safety net: decisions continue, even if learning fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dynamix_ps.config.schema import Config, Safety
from dynamix_ps.messages import Plan
from dynamix_ps.policy.base import Decision, View
from dynamix_ps.policy.model.cluster import ClusterModel
from dynamix_ps.policy.registry import make_policy
from dynamix_ps.policy.safety_net import SafetyNet
from dynamix_ps.policy.window_arrays import arrays_of
from dynamix_ps.run_record.run_state import RunState
from tests.control_plane import config, record, run_under
from tests.unit.arbitrator.service_bench import Bench, Scripted


def learning_cluster(windows_per_update: int) -> Config:
    return config(policy="ppo", file="fresh", learn=True, windows_per_update=windows_per_update)


async def test_ppo_learns_is_saved_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    async def windows(bench: Bench, numbers: range) -> None:
        for number in numbers:
            await bench.window(number, bench.plan)
            await bench.learned()

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


async def test_decisions_and_heartbeats_go_on_while_the_policy_learns(tmp_path: Path) -> None:
    started, may_end = threading.Event(), threading.Event()

    def work() -> str:
        started.set()
        assert may_end.wait(30)
        return f"learned in {threading.current_thread() is threading.main_thread()}"

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


async def test_an_arbitrator_that_is_stopped_leaves_no_update_behind(tmp_path: Path) -> None:
    may_end = threading.Event()

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


@pytest.mark.parametrize(
    ("fails", "what"),
    [({"update": ValueError("singular")}, "policy"), ({"save": OSError("disk full")}, "policy file")],
)
async def test_learning_that_fails_is_said_and_decisions_go_on(
    tmp_path: Path, fails: dict[str, Exception], what: str
) -> None:
    def work() -> None:
        if "update" in fails:
            raise fails["update"]

    class Failing(Student):
        def save(self, file: Path) -> None:
            raise fails["save"]

    bench = Bench(tmp_path, Failing((32, 64, 128), (33, 64, 128), work=work))
    bench.register_all()
    for number in range(2):
        await bench.window(number, bench.plan)
        await bench.learned()
    assert bench.plan == Plan(2, (33, 64, 128))
    assert [line["what"] for line in bench.lines("degraded")] == [what, what]


async def test_flagged_and_mixed_windows_are_not_learned_from(tmp_path: Path) -> None:
    cluster = learning_cluster(1)
    bench = Bench(tmp_path, make_policy(cluster, 3, np.random.default_rng(0)), cluster)
    bench.register_all()
    await bench.window(0, bench.plan)
    for number in range(1, 9, 2):
        bench.report(run_under(bench.plan, number, flagged=True))
        await bench.arbitrator.step()
        mixed = run_under(bench.plan, number + 1)
        mixed[0] = record(0, number + 1, plan_version=0)
        bench.report(mixed)
        await bench.arbitrator.step()
        await bench.learned()
    assert bench.lines("update") == []
    for number in range(9, 12):
        await bench.window(number, bench.plan)
        await bench.learned()
    assert bench.lines("update")


class Measuring(Scripted):
    """With a model of three workers, which sees every window."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(*answers)
        self.model = ClusterModel(3)

    def decide(self, view: View) -> Decision:
        self.model.observe(arrays_of(view))
        return super().decide(view)


async def test_what_the_safety_net_does_is_written_down(tmp_path: Path) -> None:
    cluster = config()
    net = SafetyNet(Measuring((1,), *[(100, 100, 100)] * 3), Safety(rest_windows=2))
    bench = Bench(tmp_path, net, cluster)
    bench.register_all()
    for number in range(4):
        await bench.window(number, bench.plan)
    (line,) = bench.lines("fallback")
    assert line["window"] == 0
    assert "proportional shares for 2 windows: its answer was not one finite size per worker" in line["detail"]
    assert [line["fallback"] for line in bench.lines("plan", "kept")] == [True, True, False, False]
    state = RunState(3)
    for line in bench.lines("plan", "kept", "fallback"):
        state.apply("arbitrator", line)
    assert state.arbitrator.safety_net == "once, 2 windows"
