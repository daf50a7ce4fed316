"""`dynamix launch` and `dynamix sbatch` with a real Slurm on three hosts: every ending leaves nothing on any."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.hosts.noticed_host import NoticedHost
from tests.hosts.shown_commands import shown_words
from tests.hosts.slurm_cluster import NODES, SlurmCluster, unavailable
from tests.hosts.test_ssh import (
    ENDS,
    REAL,
    SPIES,
    TOLD,
    TRAINS,
    agents_of,
    gone_within,
    read_until_all_train,
    weights_in,
)
from tests.hosts.three_hosts import Launchers, cluster_file, three_workers
from tests.launching import HOOK, ROOT, assert_nothing_left, command_line, ends, run_id_in, summary_in, wait_for

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(unavailable() is not None, reason=f"no Slurm: {unavailable()}"),
]

DYNAMIX = (sys.executable, "-m", "dynamix_ps.cli.main")


@pytest.fixture
def started(slurm: SlurmCluster, started: Launchers) -> Iterator[Launchers]:
    """Commands to end with the test, should it fail, with all jobs."""
    yield started
    slurm.cancel_all()


def submitted(slurm: SlurmCluster, folder: Path, *arguments: str) -> str:
    """The number of a job that `dynamix sbatch` has submitted."""
    output = ends(slurm.popen(*DYNAMIX, "sbatch", *arguments, cwd=folder), 0)
    found = re.fullmatch(r"Submitted batch job ([0-9]+)\n", output)
    assert found, output
    return found.group(1)


def printed(folder: Path, job: str) -> str:
    file = folder / f"slurm-{job}.out"
    return file.read_text(errors="replace") if file.exists() else ""


def wait_until_all_train(folder: Path, job: str) -> str:
    """The run id."""
    wait_for(
        lambda: all(f"training {rank}" in printed(folder, job) for rank in range(3)), "the start of training", 60.0
    )
    return run_id_in(printed(folder, job))


def ended(slurm: SlurmCluster, folder: Path, job: str, state: str, limit_s: float = 60.0) -> str:
    """Wait for the end of a job; returns all that it has printed."""
    wait_for(lambda: not slurm.is_queued(job), "the end of the job", limit_s)
    assert slurm.state_of(job) == state, printed(folder, job)
    return printed(folder, job)


def job_in(seen: str) -> str:
    found = re.search(r"Slurm job ([0-9]+)", seen)
    assert found, seen
    return found.group(1)


def test_the_example_with_three_hosts_is_a_batch_job_that_trains_and_adapts(
    slurm: SlurmCluster, tmp_path: Path, started: Launchers
) -> None:
    (tmp_path / "train.py").write_text(REAL.replace("ITERATIONS", "60"))
    shutil.copy(ROOT / "configs" / "three-hosts.yaml", tmp_path / "cluster.yaml")
    sbatch, *words = shown_words("Slurm", "--policy", "random", "--time=5")
    assert sbatch == "sbatch"
    output = ended(slurm, tmp_path, submitted(slurm, tmp_path, *words), "COMPLETED", 90.0)
    assert len(weights_in(output)) == 3
    assert len(set(weights_in(output))) == 1, output
    summary = summary_in(tmp_path)
    assert (summary["comm"], summary["workers"], summary["iterations"]) == ("byteps", 3, 60)
    assert summary["plans_applied"] >= 1
    folder = tmp_path / "runs" / "latest"
    assert {path.stem for path in (folder / "logs").glob("*.log")} >= {f"worker-{rank}" for rank in range(3)}
    assert all((folder / "roles" / f"server-{index}.jsonl").stat().st_size for index in range(3))
    assert_nothing_left(run_id_in(output))


def test_nodes_are_hosts_unasked_and_the_token_is_hidden(
    slurm: SlurmCluster, tmp_path: Path, started: Launchers
) -> None:
    """The launcher is on none of the nodes, where `salloc` has left it."""
    file = three_workers(tmp_path, HOOK + SPIES)
    launch = (*DYNAMIX, "launch", "-c", str(file))
    started.append(job := slurm.popen("salloc", "-N3", *launch, cwd=tmp_path))
    output = ends(job, 0)
    assert f"hosts from Slurm job {job_in(output)}: node-1:1,node-2:1,node-3:1\n" in output
    assert output.count("with the token: []") == 3, output
    assert_nothing_left(run_id_in(output))


def test_doctor_checks_the_nodes_of_the_job_around_it(slurm: SlurmCluster, tmp_path: Path, started: Launchers) -> None:
    doctor = (*DYNAMIX, "doctor", "--hosts", "-c", str(three_workers(tmp_path, HOOK + ENDS)))
    started.append(job := slurm.popen("salloc", "-N3", *doctor, cwd=tmp_path))
    output = ends(job, 0)
    assert all(re.search(rf"^{name}\b", output, re.MULTILINE) for name in NODES), output
    assert "\nready\n" in output


def test_a_heterogeneous_job_has_the_nodes_of_all_its_components(
    slurm: SlurmCluster, tmp_path: Path, started: Launchers
) -> None:
    file = cluster_file(tmp_path, HOOK + ENDS, {}, (64,) * 5, "gloo")
    components = ("-N1", "--cpus-per-task=2", ":", "-N2", "--ntasks-per-node=2")
    output = ended(slurm, tmp_path, submitted(slurm, tmp_path, "-c", str(file), *components), "COMPLETED", 90.0)
    assert "node-1:2,node-2:2,node-3:2" in output
    for rank, node in enumerate(("node-1", "node-1", "node-2", "node-2", "node-3")):
        assert f"worker-{rank} | here {rank} {node}" in output
    assert_nothing_left(run_id_in(output))


def test_a_job_on_one_node_needs_no_srun(slurm: SlurmCluster, tmp_path: Path, started: Launchers) -> None:
    file = three_workers(tmp_path, HOOK + ENDS)
    options = ("-n1", "--cpus-per-task=4", "--nodelist=node-2")
    output = ended(slurm, tmp_path, submitted(slurm, tmp_path, "-c", str(file), *options), "COMPLETED")
    assert "hosts from" not in output
    assert all(f"here {rank} localhost" in output for rank in range(3))
    assert_nothing_left(run_id_in(output))


def test_before_its_time_limit_a_job_ends_in_order(slurm: SlurmCluster, tmp_path: Path, started: Launchers) -> None:
    """Slurm looks at limits every 30 s. The notice comes 60 s before the limit, which becomes a minute."""
    file = three_workers(tmp_path, HOOK + TOLD + TRAINS)
    job = submitted(slurm, tmp_path, "-c", str(file), "--time=5")
    run_id = wait_until_all_train(tmp_path, job)
    slurm.run("scontrol", "update", f"JobId={job}", "TimeLimit=1")
    output = ended(slurm, tmp_path, job, "FAILED", 90.0)
    assert "interrupted by SIGTERM" in output
    assert all(f"told to end {rank}" in output for rank in range(3))
    assert_nothing_left(run_id)


def test_scancel_ends_the_workers_of_all_nodes_in_order(
    slurm: SlurmCluster, tmp_path: Path, started: Launchers
) -> None:
    file = three_workers(tmp_path, HOOK + TOLD + TRAINS)
    job = submitted(slurm, tmp_path, "-c", str(file))
    run_id = wait_until_all_train(tmp_path, job)
    agents = agents_of(run_id)
    assert len(agents) == 3
    slurm.run("scancel", job)
    output = ended(slurm, tmp_path, job, "CANCELLED")
    gone_within(run_id, 10.0, agents)
    assert "interrupted by SIGTERM" in output
    assert all(f"told to end {rank}" in output for rank in range(3))


def test_a_notice_to_the_steps_ends_the_run_in_order(slurm: SlurmCluster, tmp_path: Path, started: Launchers) -> None:
    """As at the beginning of the grace time of a preemption: the launcher gets no signal."""
    file = three_workers(tmp_path, HOOK + TOLD + TRAINS)
    started.append(job := slurm.popen("salloc", "-N3", *DYNAMIX, "launch", "-c", str(file), cwd=tmp_path))
    seen = read_until_all_train(job)
    slurm.run("scancel", "--signal=TERM", job_in(seen))
    output = ends(job, 130, seen)
    assert "error: interrupted by SIGTERM on host node-" in output
    assert all(f"told to end {rank}" in output for rank in range(3))
    assert_nothing_left(run_id_in(output))


def test_a_notice_to_the_step_of_one_node_lets_its_workers_leave(
    slurm: SlurmCluster, tmp_path: Path, started: Launchers
) -> None:
    noticed = NoticedHost(tmp_path)
    started.append(job := slurm.popen("salloc", "-N3", *DYNAMIX, "launch", "-c", "cluster.yaml", cwd=tmp_path))
    noticed.wait_until_all_train(job)
    lines = slurm.run("squeue", "--steps", "-h", "-o", "%i %N").splitlines()
    steps = {node: step for step, node in map(str.split, lines)}
    slurm.run("scancel", "--signal=TERM", steps["node-3"])
    noticed.check("node-3", ends(job, 0))


def test_a_killed_launcher_leaves_nothing_on_any_node(slurm: SlurmCluster, tmp_path: Path, started: Launchers) -> None:
    file = three_workers(tmp_path, HOOK + TRAINS)
    started.append(job := slurm.popen("salloc", "-N3", *DYNAMIX, "launch", "-c", str(file), cwd=tmp_path))
    run_id = run_id_in(read_until_all_train(job))
    (launcher,) = (child for child in psutil.Process(job.pid).children() if "launch" in command_line(f"{child.pid}"))
    rest = {*agents_of(run_id), *(child.pid for child in launcher.children(recursive=True))}
    assert len(rest) >= 3 + 3
    launcher.kill()
    gone_within(run_id, 10.0, rest)


def test_a_killed_agent_ends_the_job_and_names_its_node(
    slurm: SlurmCluster, tmp_path: Path, started: Launchers
) -> None:
    file = three_workers(tmp_path, HOOK + TRAINS)
    started.append(job := slurm.popen("salloc", "-N3", *DYNAMIX, "launch", "-c", str(file), cwd=tmp_path))
    seen = read_until_all_train(job)
    agents = agents_of(run_id_in(seen), "node-3")
    (victim,) = agents
    os.kill(victim, signal.SIGKILL)
    output = ends(job, 4, seen)
    assert "error: host node-3 is lost: srun on node-3 ended with exit code 137 (" in output
    assert "node-3: task 0: Killed" in output
    assert "(it ran worker-2)" in output
    gone_within(run_id_in(output), 10.0, agents)


REFUSED = {
    "one per task": (("-n3", "srun"), "srun has started this command 3 times (SLURM_STEP_NUM_TASKS)"),
    "too few tasks": (("-N2", "-n2"), "has 2 tasks for 3 workers; ask for a task per worker: --ntasks-per-node=2"),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_what_is_refused(slurm: SlurmCluster, tmp_path: Path, started: Launchers, case: str) -> None:
    options, reason = REFUSED[case]
    file = three_workers(tmp_path, HOOK + TRAINS)
    started.append(job := slurm.popen("salloc", *options, *DYNAMIX, "launch", "-c", str(file), cwd=tmp_path))
    output = ends(job, 2)
    assert reason in output
    assert "training" not in output
