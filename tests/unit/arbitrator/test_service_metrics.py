"""What the arbitrator joins from all roles, and what it gives to the exporter."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from dynamix_ps.arbitrator.journal import replay
from dynamix_ps.messages import Flow, RoleReport, SystemSample
from dynamix_ps.policy.base import Decision, View
from dynamix_ps.rpc.refusals import MalformedMessageError
from tests.control_plane import run_under
from tests.unit.arbitrator.service_bench import Bench, Scripted


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


async def test_a_policy_sees_links_and_servers_and_the_journal_keeps_them(tmp_path: Path) -> None:
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
    assert [link.slow for link in view.links] == ["", "", ""], "that is told after the decision, to people"
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


async def test_without_reports_of_roles_there_are_no_links_and_no_line(tmp_path: Path) -> None:
    policy = Scripted((64, 64, 64))
    bench = Bench(tmp_path, policy)
    bench.register_all()
    await bench.window(0, bench.plan)
    assert (policy.views[0].links, policy.views[0].servers) == ((), ())
    assert not bench.lines("links")


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


async def test_every_closed_window_is_shown_to_the_exporter(tmp_path: Path) -> None:
    shown = Shown()
    bench = Bench(tmp_path, Scripted((64, 64, 64), ValueError("no idea")), exporter=shown)
    bench.register_all()
    await bench.window(0, bench.plan)
    await bench.window(1, bench.plan)
    assert shown.windows == [(0, None), (1, None)]
    assert shown.degradations == ["policy"]


async def test_an_exporter_that_fails_is_degraded_once_and_decisions_go_on(tmp_path: Path) -> None:
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
