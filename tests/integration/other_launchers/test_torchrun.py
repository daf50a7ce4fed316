"""Scripts that torchrun starts on one host, without a cluster file."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from dynamix_ps.config.load import load_config
from dynamix_ps.errors import ConfigError
from tests.cases.test_launched import CHILDREN, SCRIPT, check_results
from tests.integration.other_launchers.jobs import (
    TORCHRUN,
    TRAINS,
    check_adapted,
    job,
    run_of,
    started,
    summary_of,
    training,
)
from tests.launching import read_until

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]
ENDS = [
    (signal.SIGTERM, 130, "the workers were told to end by SIGTERM"),
    (signal.SIGKILL, 4, "worker-0 ended before the training was over: by a signal, or by an error before it began"),
]
TWO = (*TORCHRUN, "--standalone", "--nproc-per-node", "2")


def test_two_workers_are_one_process(tmp_path: Path) -> None:
    """Trainings of many kinds, one after the other in each process."""
    [(code, output)] = job([(*TWO, *SCRIPT)], tmp_path)
    assert code == 0, output
    check_results(tmp_path)
    run_of(tmp_path)


def test_sizes_adapt_and_a_summary_is_left(tmp_path: Path) -> None:
    file = training(tmp_path, ', policy="pid", batch=(4, 48)')
    [(code, output)] = job([(*TWO, str(file))], tmp_path)
    assert code == 0, output
    [told] = [line for line in output.splitlines() if line.startswith("dynamix: ")]
    assert "2 workers of torchrun; first sizes 16 each, from 4 to 48, policy pid" in told
    assert "all workers finished" in output
    run = run_of(tmp_path)
    check_adapted(run)
    config = load_config(run / "config.resolved.yaml")
    assert (config.policy.name, config.bounds(1), config.initial_sizes()) == ("pid", (4, 48), (16, 16))


def test_worker_0_may_prepare_before(tmp_path: Path) -> None:
    """The workers meet there, and agree on sizes in attach()."""
    before = "place = dynamix.before_all(lambda: open('prepared', 'x').close()); assert os.path.exists('prepared')"
    after = "assert (place.rank, place.size) == (rank, 2)"
    [(code, output)] = job([(*TWO, str(training(tmp_path, before=before, after=after)))], tmp_path)
    assert code == 0, output
    check_adapted(run_of(tmp_path))


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_script_may_have_a_process_group_of_its_own(place: str, tmp_path: Path) -> None:
    lines = (
        "import torch.distributed as dist; dist.init_process_group('gloo'); own = torch.ones(1); "
        "dist.all_reduce(own); assert own == 2, own"
    )
    file = training(tmp_path, **{place: lines})
    [(code, output)] = job([(*TWO, str(file))], tmp_path)
    assert code == 0, output
    check_adapted(run_of(tmp_path))


def test_an_error_on_one_worker_ends_all(tmp_path: Path) -> None:
    file = training(tmp_path, inside="assert rank == 0 or run.iteration < 20, 'broken here'")
    [(code, output)] = job([(*TWO, str(file))], tmp_path)
    assert code != 0
    assert "broken here" in output
    summary = summary_of(run_of(tmp_path))
    assert summary["exit_code"] == 4
    assert "worker-1 failed: broken here" in summary["reason"]


@pytest.mark.parametrize(("number", "exit_code", "said"), ENDS)
def test_a_training_that_is_ended_leaves_a_summary_and_nothing_else(
    number: signal.Signals, exit_code: int, said: str, tmp_path: Path
) -> None:
    """By SIGTERM to torchrun, in order as the script saves checkpoints, or because the process of rank 0 is killed."""
    file = training(tmp_path, inside=f"run.save() if run.iteration == 4 else None; {TRAINS}")
    with started([(*TWO, str(file))], tmp_path) as [process]:
        seen = read_until(process, "trains 0 ")
        victim = int(seen.split("trains 0 ")[1].split()[0]) if number == signal.SIGKILL else process.pid
        os.kill(victim, number)
        process.communicate(timeout=60)
        assert process.returncode != 0
        summary = summary_of(run_of(tmp_path))
    assert (summary["exit_code"], summary["reason"]) == (exit_code, said)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (', policy="nobody"', "policy.name"),
        (", batch=(32, 64)", "a worker begins with 16 samples per batch, expected 32 to 64"),
    ],
)
def test_a_wrong_choice_is_refused_on_all_workers(options: str, said: str, tmp_path: Path) -> None:
    file = training(tmp_path, options, before="import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    [(code, output)] = job([(*TWO, str(file))], tmp_path)
    assert code != 0
    assert output.count(said) == 2, output
    assert f"exitcode  : {ConfigError.exit_code} " in output
    assert not (tmp_path / "runs").exists()


def test_a_cluster_file_decides(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(
        "name: t\ncomm: gloo\nwindow: 5\nbatch: {min: 2, max: 40}\n"
        "cluster: {workers: [{batch: 20}, {batch: 12}], wire: int8}\npolicy: {name: proportional}\n"
    )
    file = training(tmp_path, after="assert os.environ['DYNAMIX_WIRE'] == 'int8'")
    [(code, output)] = job([(*TWO, str(file))], tmp_path, [{"DYNAMIX_CONFIG": "cluster.yaml"}])
    assert code == 0, output
    run = run_of(tmp_path)
    check_adapted(run)
    assert summary_of(run)["batch_sizes_start"] == [20, 12]


def test_a_cluster_file_that_needs_our_launcher_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text("comm: byteps\ncluster: {workers: [{}, {}, {}]}\nenv: {A: '1'}\n")
    file = training(tmp_path)
    [(code, output)] = job([(*TWO, str(file))], tmp_path, [{"DYNAMIX_CONFIG": "cluster.yaml"}])
    assert code != 0
    for said in ("names 3 workers, and this job has 2", "env: the processes run already"):
        assert said in output


def test_a_job_that_is_started_again_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    fails = "assert rank == 0 or run.iteration < 60 or os.environ['TORCHELASTIC_RESTART_COUNT'] == '1', 'once'"
    inside = f"run.save() if run.iteration == 40 else None; {fails}"
    before = "print('attempt', os.environ['TORCHELASTIC_RESTART_COUNT'], flush=True)"
    file = training(tmp_path, before=before, inside=inside)
    [(code, output)] = job([(*TWO[:-2], "--max-restarts", "1", *TWO[-2:], str(file))], tmp_path)
    assert code == 0, output
    assert output.count("attempt 1") == 2
    summary = summary_of(run_of(tmp_path))
    assert summary["exit_code"] == 0
    assert summary["resumed"]["iteration"] == 40
    assert len(list((tmp_path / "runs").glob("run-*"))) == 2


def test_a_process_that_a_worker_starts_is_refused(tmp_path: Path) -> None:
    """Also one without our variables: it has those of torchrun."""
    (tmp_path / "cluster.yaml").write_text(
        "comm: gloo\nbatch: {min: 1}\ncluster: {workers: [{batch: 24}, {batch: 8}]}\n"
    )
    [(code, output)] = job([(*TWO, *CHILDREN)], tmp_path, [{"DYNAMIX_CONFIG": "cluster.yaml"}])
    assert code == 0, output
    second = json.loads((tmp_path / "result-1.json").read_text())
    found, pid = second["found"], second["pid"]
    assert found["alone"].startswith(
        f"2 error: process {pid} takes part as rank 1 already, and a worker is one process"
    )
    for way in ("spawn", "fork", "os.fork"):
        assert found[way].startswith(f"process {pid} is worker 1 already"), found
    run_of(tmp_path)
