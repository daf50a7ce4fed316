"""Workers over DDP as processes: what they get, what is kept of what they say, and how they end. Without torch."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from benchmarks.suite import ddp_job
from benchmarks.suite.cell import config_of
from benchmarks.suite.contenders import contender
from benchmarks.suite.ddp_job import DdpRecord, command_of, train
from benchmarks.suite.placement import Scheduled
from benchmarks.suite.result_of_run import over_ddp
from benchmarks.suite.results import CellName
from benchmarks.suite.scenario import load_scenario
from benchmarks.suite.workloads import load_workload
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import EnvironmentNotReady, JobFailed
from dynamix_ps.launch.emulation.cpu_quota import find_controller
from dynamix_ps.launch.emulation.speeds import Emulation, choose_emulation

pytestmark = pytest.mark.timeout(60)

NAME = CellName("h-level-4", "fashion-cnn-short", "ddp-by-hand", 3)
WORKLOAD = load_workload(NAME.workload)
EVALUATION = {"kind": "evaluation", "iterations": 7, "trained_samples": 8000, "train_s": 4.5, "trained_s": 4.0,
              "values": {"accuracy": 0.5, "loss": 1.25}}  # fmt: skip
TELLS = f"""
import json, os, sys
def tell(**line):
    if os.environ["RANK"] == "0":
        print(json.dumps(line), flush=True)
tell(kind="began")
tell(kind="paused")
tell(**{EVALUATION!r})
"""
ENV = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS")
ENDS = f"""
tell(kind="ended", iterations=9, trained_samples=9000, train_s=5.0, env={{name: os.environ[name] for name in {ENV}}})
print("word of", os.environ["RANK"])
"""


def job(script: str, tmp_path: Path, limit_s: float = 60.0, emulation: str = "none") -> tuple[DdpRecord, Config]:
    scenario = load_scenario(NAME.scenario)
    placement = Scheduled(scenario, limit_s)
    config = config_of(NAME, scenario, WORKLOAD, contender(NAME.contender), tmp_path, placement)
    config = config.model_copy(update={"emulation": emulation})
    return train((sys.executable, "-c", script), config, placement), config


def test_workers_get_what_torchrun_would_give_and_their_words_become_a_result(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    told, config = job(TELLS + ENDS, tmp_path)
    assert told.end is not None
    env = told.end["env"]
    assert env.pop("MASTER_PORT").isdigit()
    assert env == {
        "RANK": "0",
        "WORLD_SIZE": "3",
        "MASTER_ADDR": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    assert sorted(capfd.readouterr().out.splitlines()) == [f"[worker-{rank}] word of {rank}" for rank in range(3)]
    result = over_ddp(NAME, told, config, WORKLOAD, "loopback", 30.0)
    assert (result.ended, result.reason, result.samples, result.iterations, result.train_s) == (
        "done",
        "",
        9000,
        9,
        5.0,
    )
    (point,) = result.curve
    assert (point.time_s, point.samples, point.accuracy, point.loss) == (4.0, 8000, 0.5, 1.25)
    assert [(one.time_s, one.sizes) for one in result.sizes] == [(0.0, config.initial_sizes())]
    assert (result.emulation, result.workers, result.wait_fraction) == (told.emulation, (), None)


def test_training_that_takes_too_long_is_cut_off_and_keeps_its_curve(tmp_path: Path) -> None:
    forever = f"{TELLS}\nopen({str(tmp_path)!r} + '/' + os.environ['RANK'], 'w').write(str(os.getpid()))\nimport time\n"
    told, config = job(forever + "while True: time.sleep(1)", tmp_path, limit_s=0.5)
    assert told.out_of_time.startswith("training did not end within the limit")
    for file in tmp_path.glob("[0-9]"):
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.read_text()), 0)
    result = over_ddp(NAME, told, config, WORKLOAD, "loopback", 30.0)
    assert (result.ended, result.samples, len(result.curve)) == ("timed out", 8000, 1)


def test_a_loss_that_is_not_finite_is_a_result(tmp_path: Path) -> None:
    told, config = job(TELLS + 'tell(kind="diverged", reason="it is not finite")', tmp_path)
    result = over_ddp(NAME, told, config, WORKLOAD, "loopback", 30.0)
    assert (result.ended, result.reason, result.curve) == ("diverged", "it is not finite", ())


def test_a_worker_that_fails_ends_the_others_and_is_named(tmp_path: Path) -> None:
    fails = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit('no such data')\ntime.sleep(600)"
    with pytest.raises(JobFailed, match=r"worker-1 ended with exit code 1: no such data"):
        job(fails, tmp_path)


@pytest.mark.skipif(not find_controller().usable, reason=f"no CPU quotas: {find_controller().problem}")
def test_quotas_begin_with_training_and_go_with_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[Emulation] = []

    def choose(config: Config, run_id: str, cores: float) -> Emulation:
        chosen.append(choose_emulation(config, run_id, cores))
        return chosen[-1]

    monkeypatch.setattr(ddp_job, "choose_emulation", choose)
    waits = f"""
import time
from dynamix_ps.cgroups import available_cores
before = available_cores()
{TELLS}
while os.environ["RANK"] == "0" and available_cores() == before:
    time.sleep(0.02)
tell(kind="ended", iterations=9, trained_samples=9000, train_s=5.0, cores=available_cores())
"""
    told, _ = job(waits, tmp_path, emulation="cgroup")
    assert told.end is not None
    assert told.end["cores"] == pytest.approx(load_scenario(NAME.scenario).cores[0], rel=0.01)
    (emulation,) = chosen
    assert len(emulation.groups) == 3
    assert not any(group.exists() for group in emulation.groups)


def test_speeds_that_only_a_hook_could_emulate_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ddp_job, "RoleProcess", lambda *_: pytest.fail("a worker was started"))
    with pytest.raises(EnvironmentNotReady, match="DDP has no hook that could slow down"):
        job("", tmp_path, emulation="hook")


def test_the_command_has_the_options_of_the_workload_and_the_sizes() -> None:
    command = command_of(WORKLOAD, contender("ddp"), (64, 32), 5)
    assert command[:3] == (sys.executable, "-m", "benchmarks.workloads.train_ddp")
    assert command[3:] == (*WORKLOAD.command[3:], "--lr-factor", "1.0", "--seed", "5", "--sizes", "64", "32")
