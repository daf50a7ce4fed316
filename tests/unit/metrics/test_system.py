"""CPU and memory of a process inside control groups."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import types
from pathlib import Path

import psutil
import pytest

from dynamix_ps.launch.emulation.cpu_quota import find_controller
from dynamix_ps.messages import SystemSample
from dynamix_ps.metrics.gpu import Gpu, first_device
from dynamix_ps.metrics.system import SystemSampler

MACHINE_BYTES = psutil.virtual_memory().total


class Machine:
    """A made-up tree of control groups, and clocks that only move when told."""

    def __init__(self, folder: Path, version: int) -> None:
        self.version = version
        self.root = folder / "cg"
        self.proc = folder / "proc"
        self.proc.mkdir()
        self.now_s = self.cpu_s = 0.0
        kind, options = ("cgroup", "rw,cpu,memory") if version == 1 else ("cgroup2", "rw")
        (self.proc / "mounts").write_text(f"proc /proc proc rw 0 0\n{kind} {self.root} {kind} {options} 0 0\n")
        self.enter("box/inner")

    def enter(self, group: str) -> None:
        """The process is now in this group."""
        (self.root / group).mkdir(parents=True, exist_ok=True)
        controllers = "3:cpu,memory" if self.version == 1 else "0:"
        (self.proc / "cgroup").write_text(f"{controllers}:/{group}\n")

    def write(self, group: str, **files: str) -> None:
        for name, text in files.items():
            (self.root / group / name.replace("__", ".")).write_text(text)

    def throttled(self, group: str, seconds: float) -> None:
        name, unit = ("throttled_time", 1e9) if self.version == 1 else ("throttled_usec", 1e6)
        self.write(group, cpu__stat=f"nr_periods 9\nnr_throttled 5\n{name} {round(seconds * unit)}\n")

    def quota(self, group: str, cores: float) -> None:
        if self.version == 1:
            self.write(group, cpu__cfs_quota_us=f"{round(20_000 * cores)}\n", cpu__cfs_period_us="20000\n")
        else:
            self.write(group, cpu__max=f"{round(20_000 * cores)} 20000\n")

    def sampler(self) -> SystemSampler:
        return SystemSampler(False, self.proc, lambda: self.now_s, lambda: self.cpu_s)

    def run(self, seconds: float, cpu_s: float) -> None:
        self.now_s += seconds
        self.cpu_s += cpu_s


@pytest.fixture(params=[1, 2])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    return Machine(tmp_path, request.param)


def test_a_quota_of_an_outer_group_limits_cores_and_its_throttling_is_seen(machine: Machine) -> None:
    machine.quota("box", 0.5)
    machine.throttled("box", 7.0)
    machine.throttled("box/inner", 0.0)
    sampler = machine.sampler()
    machine.run(10.0, 4.0)
    machine.throttled("box", 12.0)
    sample = sampler.sample()
    assert (sample.cpu_cores, sample.cpu_ratio, sample.throttled) == pytest.approx((0.5, 0.4, 0.5))
    machine.run(10.0, 1.0)
    sample = sampler.sample()
    assert (sample.cpu_ratio, sample.throttled) == pytest.approx((0.1, 0.0))


def test_threads_that_are_held_back_at_once_do_not_make_more_than_the_time_there_is(machine: Machine) -> None:
    machine.quota("box", 4)
    machine.throttled("box", 0.0)
    sampler = machine.sampler()
    machine.run(10.0, 40.0)  # eight threads want eight cores and get four
    machine.throttled("box", 40.0)
    assert sampler.sample().throttled == pytest.approx(0.5)


def test_a_limit_that_comes_while_the_process_runs_counts_from_then_on(machine: Machine) -> None:
    machine.throttled("box/inner", 1.0)
    sampler = machine.sampler()
    machine.run(1.0, 1.0)
    assert sampler.sample().throttled == 0.0
    machine.quota("box/inner", 0.25)
    machine.run(1.0, 0.25)
    machine.throttled("box/inner", 1.75)
    sample = sampler.sample()
    assert (sample.cpu_cores, sample.throttled) == pytest.approx((0.25, 0.75))


def test_a_process_moved_to_another_group_never_mixes_their_counters(machine: Machine) -> None:
    machine.throttled("box/inner", 100.0)
    sampler = machine.sampler()
    machine.enter("slow")
    machine.quota("slow", 0.25)
    machine.throttled("slow", 3.0)
    machine.run(1.0, 0.25)
    assert math.isnan(sampler.sample().throttled)  # what the group had before is unknown
    machine.run(1.0, 0.25)
    machine.throttled("slow", 3.5)
    assert sampler.sample().throttled == pytest.approx(0.5)


def test_a_counter_that_falls_back_is_unknown_and_never_negative(machine: Machine) -> None:
    machine.quota("box", 1)
    machine.throttled("box", 5.0)
    sampler = machine.sampler()
    machine.throttled("box", 1.0)
    machine.run(1.0, 0.5)
    assert math.isnan(sampler.sample().throttled)


def test_memory_counts_against_the_limit_of_the_group_without_what_would_be_given_up(machine: Machine) -> None:
    in_use, limit, idle = (
        ("memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file")
        if machine.version == 1
        else ("memory.current", "memory.max", "inactive_file")
    )
    group = machine.root / "box"
    (group / in_use).write_text("800\n")
    (group / limit).write_text("1000\n")
    (group / "memory.stat").write_text(f"cache 5\n{idle} 300\n")
    assert machine.sampler().sample().memory_ratio == pytest.approx(0.5)
    (group / limit).write_text(f"{2**63 - 4096}\n" if machine.version == 1 else "max\n")
    unlimited = psutil.virtual_memory()
    assert machine.sampler().sample().memory_ratio == pytest.approx(unlimited.percent / 100, abs=0.05)


def test_garbage_and_missing_files_are_unknown_and_no_error(machine: Machine) -> None:
    machine.quota("box", 0.5)
    sampler = machine.sampler()
    machine.write("box", cpu__stat="throttled_time x\n", cpu__max="a b", cpu__cfs_quota_us="a", cpu__cfs_period_us="b")
    machine.run(1.0, 0.5)
    sample = sampler.sample()
    assert sample.cpu_ratio == 0.5
    assert sample.cpu_cores == len(os.sched_getaffinity(0))
    (machine.proc / "cgroup").unlink()
    assert math.isnan(sampler.sample().throttled)
    assert math.isnan(SystemSampler(False, machine.proc / "nothing").sample().throttled)


def test_this_process_is_measured_here() -> None:
    sample = SystemSampler(with_gpu=False).sample()
    assert sample.cpu_ratio > 0
    assert 0 < sample.memory_ratio <= 1
    assert 1_000_000 < sample.memory_bytes < MACHINE_BYTES


BUSY = """
import sys, time
from dynamix_ps.metrics.system import SystemSampler
sampler = SystemSampler(with_gpu=False)
print("ready", flush=True)
for line in sys.stdin:
    end_s = time.process_time() + 0.1
    while time.process_time() < end_s:
        pass
    print(sampler.sample(), flush=True)
"""


@pytest.mark.skipif(not find_controller().usable, reason=f"no CPU quota here: {find_controller().problem}")
@pytest.mark.alone  # what is held back depends on how much the machine gives
def test_a_real_process_under_a_real_quota_sees_its_limit() -> None:
    controller = find_controller()
    group = controller.create(f"dynamix-test-system-{os.getpid()}")
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None

    def ask() -> SystemSample:
        assert process.stdin is not None and process.stdout is not None
        print("go", file=process.stdin, flush=True)
        return eval(process.stdout.readline(), {"SystemSample": SystemSample, "nan": math.nan})

    try:
        assert process.stdout.readline() == "ready\n"
        free = ask()
        (group / "cgroup.procs").write_text(str(process.pid))
        controller.limit(group, 0.2)
        ask()
        held = ask()
        assert free.cpu_cores > held.cpu_cores == pytest.approx(0.2)
        assert held.cpu_ratio < 0.5
        assert 0.1 < held.throttled <= 1
    finally:
        process.kill()
        process.communicate()
        group.rmdir()


class TestGpu:
    def test_the_card_is_the_one_cuda_shows(self) -> None:
        assert first_device({}) == "0"
        assert first_device({"NVIDIA_VISIBLE_DEVICES": "all"}) == "0"
        assert first_device({"NVIDIA_VISIBLE_DEVICES": "2,3"}) == "2"
        assert first_device({"NVIDIA_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "GPU-1a, GPU-2b"}) == "GPU-1a"
        assert first_device({"CUDA_VISIBLE_DEVICES": "-1"}) == ""
        assert first_device({"CUDA_VISIBLE_DEVICES": ""}) == ""

    def test_no_card_is_unknown(self) -> None:
        sample = Gpu({"CUDA_VISIBLE_DEVICES": "GPU-there-is-no-such-card"}).sample()
        assert math.isnan(sample.utilisation) and math.isnan(sample.memory_ratio)

    def test_what_the_driver_tells_becomes_fractions_and_a_lost_card_unknown(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class NVMLError(Exception):
            pass

        def rates(handle: str) -> object:
            if lost:
                raise NVMLError("lost")
            return types.SimpleNamespace(gpu=37 if handle == "card 1" else 0)

        lost: list[bool] = []
        driver = types.SimpleNamespace(
            NVMLError=NVMLError,
            nvmlInit=lambda: None,
            nvmlDeviceGetHandleByIndex=lambda index: f"card {index}",
            nvmlDeviceGetHandleByUUID=lambda name: name,
            nvmlDeviceGetUtilizationRates=rates,
            nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(used=20, total=80),
        )
        monkeypatch.setitem(sys.modules, "pynvml", driver)
        card = Gpu({"CUDA_VISIBLE_DEVICES": "1,0"})
        assert (card.sample().utilisation, card.sample().memory_ratio) == (0.37, 0.25)
        assert Gpu({"CUDA_VISIBLE_DEVICES": "GPU-ab"}).sample().utilisation == 0.0
        lost.append(True)
        assert math.isnan(card.sample().utilisation)

    def test_a_card_that_is_there_is_measured(self) -> None:
        sample = Gpu({}).sample()
        if math.isnan(sample.memory_ratio):
            pytest.skip("no NVIDIA driver or no card on this machine")
        assert 0 <= sample.utilisation <= 1
        assert 0 < sample.memory_ratio <= 1
