"""Emulated speed: quotas where they can be set, and what happens where they cannot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps.cgroups import available_cores
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.emulation import speeds as emulate
from dynamix_ps.launch.emulation.cpu_quota import CpuController, find_controller, quota
from dynamix_ps.launch.emulation.speeds import RESERVED_CORES, by_quota, choose_emulation, core_quotas

SPEEDS = st.lists(st.floats(0.01, 1), min_size=1, max_size=64)


@given(SPEEDS, st.floats(0.5, 128))
def test_quotas_keep_the_ratio_of_the_speeds_and_leave_room_for_the_servers(speeds: list[float], cores: float) -> None:
    quotas = core_quotas(speeds, cores)
    assert sum(quotas) <= max(cores - RESERVED_CORES, 0.1) * (1 + 1e-9)
    assert all(granted <= speed * (1 + 1e-9) for granted, speed in zip(quotas, speeds, strict=True))
    assert [granted / quotas[0] for granted in quotas] == pytest.approx([speed / speeds[0] for speed in speeds])


def test_where_there_are_cores_enough_speed_one_is_one_core() -> None:
    assert core_quotas((1, 0.5, 0.25), 16) == (1, 0.5, 0.25)
    assert core_quotas((1, 0.5, 0.25), 2) == pytest.approx((0.914, 0.457, 0.229), abs=1e-3)


@given(st.floats(1e-3, 64))
def test_a_quota_is_one_the_kernel_accepts_and_gives_the_cores_asked_for(cores: float) -> None:
    quota_us, period_us = quota(cores)
    assert quota_us >= 1000
    assert 20_000 <= period_us <= 1_000_000
    assert quota_us / period_us == pytest.approx(cores, rel=0.01)


def fake_proc(base: Path, mounts: str, groups: str) -> Path:
    proc = base / "proc"
    proc.mkdir()
    (proc / "mounts").write_text(mounts)
    (proc / "cgroup").write_text(groups)
    return proc


def test_version_1_is_found_below_the_own_group(tmp_path: Path) -> None:
    own = tmp_path / "cpu,acct" / "user"
    own.mkdir(parents=True)
    mounts = f"proc /proc proc rw 0 0\ncgroup {tmp_path}/cpu,acct cgroup rw,cpu,cpuacct 0 0\n"
    proc = fake_proc(tmp_path, mounts, "3:cpu,cpuacct:/user\n0::/\n")
    assert find_controller(proc, probe=False) == CpuController(1, own)


def test_version_2_takes_the_nearest_group_that_hands_cpu_down(tmp_path: Path) -> None:
    root = tmp_path / "a folder"
    leaf = root / "user.slice" / "session"
    leaf.mkdir(parents=True)
    for group, controllers in ((root, "cpu memory"), (root / "user.slice", "cpu"), (leaf, "")):
        (group / "cgroup.subtree_control").write_text(controllers)
    mounts = f"cgroup2 {str(root).replace(' ', chr(92) + '040')} cgroup2 rw 0 0\n"
    proc = fake_proc(tmp_path, mounts, "0::/user.slice/session\n")
    assert find_controller(proc, probe=False) == CpuController(2, root / "user.slice")


def test_a_group_that_a_container_hides_falls_back_to_what_is_visible(tmp_path: Path) -> None:
    root = tmp_path / "cpu"
    root.mkdir()
    proc = fake_proc(tmp_path, f"cgroup {root} cgroup rw,cpu 0 0\n", "1:cpu:/docker/12ab\n")
    assert find_controller(proc, probe=False) == CpuController(1, root)


def test_limits_are_written_in_the_words_of_each_version(tmp_path: Path) -> None:
    CpuController(1, tmp_path).limit(tmp_path, 0.25)
    assert (tmp_path / "cpu.cfs_quota_us").read_text() == "5000"
    assert (tmp_path / "cpu.cfs_period_us").read_text() == "20000"
    assert (tmp_path / "cpu.shares").read_text() == "256"
    CpuController(2, tmp_path).limit(tmp_path, 0.25)
    assert (tmp_path / "cpu.max").read_text() == "5000 20000"
    assert (tmp_path / "cpu.weight").read_text() == "25"


def test_without_any_controller_the_reason_is_told(tmp_path: Path) -> None:
    controller = find_controller(fake_proc(tmp_path, "proc /proc proc rw 0 0\n", "0::/\n"))
    assert not controller.usable
    assert "no cgroup file system" in controller.problem


def test_a_quota_around_this_process_counts_as_fewer_cores(tmp_path: Path) -> None:
    root = tmp_path / "cg"
    (root / "box" / "inner").mkdir(parents=True)
    (root / "box" / "cpu.max").write_text("50000 100000\n")
    (root / "box" / "inner" / "cpu.max").write_text("max 100000\n")
    proc = fake_proc(tmp_path, f"cgroup2 {root} cgroup2 rw 0 0\n", "0::/box/inner\n")
    assert available_cores(proc) == 0.5


def config(emulation: str, *speeds: float) -> Config:
    workers = tuple({"speed": speed} for speed in speeds)
    return Config.model_validate({"cluster": {"workers": workers}, "emulation": emulation})


def permit(monkeypatch: pytest.MonkeyPatch, controller: CpuController) -> None:
    monkeypatch.setattr(emulate, "find_controller", lambda: controller)


def test_auto_prefers_the_quota_and_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    permit(monkeypatch, CpuController(1, tmp_path))
    chosen = choose_emulation(config("auto", 1, 0.5), "0badcafe", 2.0)
    assert chosen.method == "cgroup"
    assert chosen.description == "cgroup v1 CPU quota: 1.00, 0.50 cores"
    assert chosen.slowdowns is None
    assert [group.name for group in chosen.groups] == ["dynamix-0badcafe-w0", "dynamix-0badcafe-w1"]


def test_auto_falls_back_to_the_hook_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    permit(monkeypatch, CpuController(0, Path(), "/sys/fs/cgroup: Permission denied"))
    chosen = choose_emulation(config("auto", 1, 0.5), "0badcafe", 2.0)
    assert chosen.method == "hook"
    assert chosen.slowdowns == (1.0, 2.0)
    assert "1x, 2x compute time (no cgroup: /sys/fs/cgroup: Permission denied)" in chosen.description
    chosen.create()
    chosen.change(())


def test_a_demanded_cgroup_that_is_not_permitted_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    permit(monkeypatch, CpuController(0, Path(), "/sys/fs/cgroup: Permission denied"))
    with pytest.raises(EnvironmentNotReady, match=r"Permission denied.*emulation: auto"):
        choose_emulation(config("cgroup", 1, 0.5), "0badcafe", 2.0)


@pytest.mark.parametrize("emulation", ["auto", "none"])
def test_equal_speeds_are_left_alone(emulation: str) -> None:
    chosen = choose_emulation(config(emulation, 1, 1), "0badcafe", 2.0)
    assert (chosen.method, chosen.groups) == ("none", ())


def test_groups_are_made_without_a_limit_and_limited_later(tmp_path: Path) -> None:
    chosen = by_quota(CpuController(2, tmp_path), (1.0, 0.25), "0badcafe", 2.0)
    chosen.create()
    assert [group.is_dir() for group in chosen.groups] == [True, True]
    assert not list(chosen.groups[1].iterdir())
    chosen.change(())
    assert (chosen.groups[1] / "cpu.max").read_text() == "5000 20000"
    with pytest.raises(EnvironmentNotReady, match="cannot create"):
        chosen.create()


@pytest.mark.skipif(not find_controller().usable, reason="control groups are not permitted here")
def test_this_machine_takes_a_real_limit() -> None:
    controller = find_controller()
    group = controller.create(f"dynamix-test-{os.getpid()}")
    try:
        controller.limit(group, 0.02)
        controller.limit(group, 0.5)
    finally:
        group.rmdir()
