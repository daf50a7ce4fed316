"""Scenarios of the suite: the shipped ones, what holds when, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from benchmarks.suite import scenario as scenarios
from benchmarks.suite.placement import Scheduled, link_of
from benchmarks.suite.scenario import LinkSettings, Scenario, load_scenario, shipped
from dynamix_ps.config.role_hosts import role_hosts
from dynamix_ps.config.schema import Cluster, Config, WorkerSection
from dynamix_ps.errors import ConfigError, EnvironmentNotReady, TimedOut
from dynamix_ps.launch.emulation.cpu_quota import CpuController
from dynamix_ps.launch.emulation.speeds import Emulation, by_quota

TWO = {"name": "two", "about": "", "cores": (0.5, 0.5)}
STEPS = (
    {"at_s": 5.0, "cores": (0.25, 0.75)},
    {"at_s": 8.0, "links": {"worker-1": {"up_loss": 0.1}}},
    {"at_s": 9.0, "cores": (0.5, 0.5), "links": {"worker-1": {}}},
)


def two(**changes: Any) -> Scenario:
    return Scenario.model_validate(TWO | changes)


@pytest.mark.parametrize("name", shipped())
def test_shipped_scenarios_share_the_same_cores(name: str) -> None:
    one = load_scenario(name)
    at_all_times = [one.cores, *(change.cores for change in one.schedule if change.cores)]
    if name not in ("bursts", "spot"):  # there somebody else takes cores away
        assert [sum(cores) for cores in at_all_times] == pytest.approx([1.5] * len(at_all_times), abs=2e-3)
    assert max(sum(cores) for cores in at_all_times) <= 1.502


@pytest.mark.parametrize("level", [2, 4, 8, 10])
def test_levels_are_largest_over_smallest(level: int) -> None:
    cores = load_scenario(f"h-level-{level}").cores
    assert max(cores) / min(cores) == pytest.approx(level, rel=0.01)


def test_what_holds_when() -> None:
    one = two(schedule=STEPS)
    assert one.at(4.9).cores == (0.5, 0.5)
    assert (one.at(5.0).cores, one.at(5.0).links) == ((0.25, 0.75), {})
    assert one.at(8.5).links == {"worker-1": LinkSettings(up_loss=0.1)}
    assert (one.at(100.0).cores, one.at(100.0).links) == ((0.5, 0.5), {"worker-1": LinkSettings()})


@given(st.floats(0, 1e4))
def test_a_schedule_repeats(moment_s: float) -> None:
    one = two(schedule=STEPS, repeat_s=10.0)
    again, first = one.at(moment_s), one.at(moment_s % 10.0)
    assert (again.cores, again.links) == (first.cores, first.links)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"schedule": ({"at_s": 1.0, "cores": (0.5,)},)}, "1 cores at 1.0 s, workers: 2"),
        ({"schedule": STEPS[::-1]}, "at_s must grow"),
        ({"schedule": STEPS, "repeat_s": 6.0}, "at_s 8.0 is never reached"),
        ({"links": {"worker-2": {}}}, "no host worker-2; there are scheduler, worker-0, worker-1"),
        ({"links": {"server-0": {}}}, "no host server-0; there are scheduler, worker-0, worker-1"),
        ({"servers": ({"host": "worker-2"},)}, "servers: no worker-2; there are worker-0, worker-1"),
        ({"cores": (0.5, 1.5)}, "less than or equal to 1"),
        ({"core": (0.5,)}, "Extra inputs"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        two(**changes)


@pytest.mark.parametrize(
    ("servers", "beside", "hosts"),
    [
        ("auto", ["worker-0", "worker-1"], ("scheduler", "worker-0", "worker-1")),
        (2, ["own", "own"], ("scheduler", "server-0", "server-1", "worker-0", "worker-1")),
        (({"host": "worker-1"}, {}), ["worker-1", "own"], ("scheduler", "server-1", "worker-0", "worker-1")),
    ],
)
def test_servers_stand_on_hosts_of_workers_or_have_their_own(
    servers: object, beside: list[str], hosts: tuple[str, ...]
) -> None:
    one = two(servers=servers)
    assert [server.host for server in one.placed_servers] == beside
    assert one.hosts == hosts


def test_only_the_scenario_of_a_servers_link_keeps_a_server_on_a_host_of_its_own() -> None:
    apart = [name for name in shipped() if "server-0" in load_scenario(name).hosts]
    assert apart == ["server-ingress"]


def test_on_loopback_one_server_is_enough_for_all_workers() -> None:
    servers = Scheduled(two(), limit_s=20.0).servers
    assert role_hosts(Cluster(servers=servers, workers=(WorkerSection(), WorkerSection()))).servers == ("localhost",)


def test_errors_name_file_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd.yaml").write_text("name: odd\nabout: x\ncores: [0.5, 7.0]\n")
    monkeypatch.setattr(scenarios, "FOLDER", tmp_path)
    with pytest.raises(ConfigError, match=r"odd\.yaml:3: cores\[1\]: "):
        load_scenario("odd")
    with pytest.raises(ConfigError, match="no scenario 'even'; there are odd"):
        load_scenario("even")


def test_links() -> None:
    assert link_of(LinkSettings()).up_bits_per_s == math.inf
    assert link_of(LinkSettings(down_mbit=40.0)).down_bits_per_s == 40e6


def test_cores_change_once_per_step_and_training_ends_at_the_limit(tmp_path: Path) -> None:
    group_files = ("cpu.max", "cpu.weight")
    emulation = by_quota(CpuController(2, tmp_path), (0.5, 0.5), "0badcafe", 2.0)
    for group in emulation.groups:
        group.mkdir()
    stage = Scheduled(two(schedule=STEPS), limit_s=20.0)
    stage.tick(1.0, emulation)
    assert not any((group / file).exists() for group in emulation.groups for file in group_files)
    stage.tick(5.2, emulation)
    assert [(group / "cpu.max").read_text() for group in emulation.groups] == ["5000 20000", "15000 20000"]
    for group in emulation.groups:
        (group / "cpu.max").unlink()
    stage.tick(5.4, emulation)
    assert not (emulation.groups[0] / "cpu.max").exists()
    assert not stage.out_of_time
    with pytest.raises(TimedOut, match="limit of 20 s"):
        stage.tick(20.1, emulation)
    assert stage.out_of_time


def test_speeds_that_change_need_quotas() -> None:
    stage = Scheduled(two(schedule=STEPS), limit_s=20.0)
    with pytest.raises(EnvironmentNotReady, match="need CPU quotas"):
        stage.tick(6.0, Emulation("hook", "", (0.5, 0.5)))


def test_a_cluster_file_can_hold_every_scenario() -> None:
    for name in shipped():
        speeds = [{"batch": 64, "speed": cores} for cores in load_scenario(name).cores]
        Config.model_validate({"cluster": {"workers": tuple(speeds)}})
