"""A Slurm job as hosts, and the srun that reaches one of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from dynamix_ps.config.schema import Host
from dynamix_ps.errors import EnvironmentNotReady, UsageError
from dynamix_ps.launch.targets.slurm.allocation import SlurmJob, advice, slurm_job

SCONTROL = """\
#!/bin/sh
[ "$*" = "--oneliner show node n1,n2,m" ] || exit 1
echo "NodeName=n1 Arch=x86_64 CoresPerSocket=2 NodeAddr=10.0.0.1 NodeHostName=n1 Version=22.05.8"
echo "NodeName=n2 Arch=x86_64 CoresPerSocket=2 NodeAddr=n2 NodeHostName=n2 Version=22.05.8"
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A job on three nodes, where programs stand for those of Slurm."""
    for name, text in {"srun": "#!/bin/sh\n", "scontrol": SCONTROL}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    nodes = {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "n[1-2],m", "SLURM_TASKS_PER_NODE": "8(x2),4"}
    return {"PATH": f"{tmp_path}:/usr/bin:/bin", **nodes}


def job_in(environ: Mapping[str, str]) -> SlurmJob:
    job = slurm_job(environ)
    assert job is not None
    return job


def slots(environ: Mapping[str, str], workers: int) -> dict[str, int]:
    return {name: host.room for name, host in job_in(environ).hosts(workers).items()}


def test_without_a_job_there_is_none() -> None:
    assert slurm_job({"PATH": "/usr/bin", "SLURM_CONF": "/etc/slurm.conf"}) is None


def test_nodes_are_hosts_under_the_addresses_that_slurm_has_for_them(environ: dict[str, str]) -> None:
    job = job_in({**environ, "SLURM_NTASKS": "20"})
    assert job.name == "Slurm job 42"
    assert job.hosts(3) == {"n1": Host(address="10.0.0.1", slots=8), "n2": Host(slots=8), "m": Host(slots=4)}
    assert (job.reaches("m"), job.reaches("n3")) == (True, False)


def test_where_slurm_does_not_tell_addresses_names_count(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho 'slurm_load_node error: Unable to contact' >&2\nexit 1\n")
    assert {host.address for host in job_in(environ).hosts(3).values()} == {None}
    (tmp_path / "scontrol").unlink()
    assert {host.address for host in job_in({**environ, "PATH": f"{tmp_path}"}).hosts(3).values()} == {None}


@pytest.mark.parametrize(("workers", "each"), [(2, 1), (3, 1), (4, 2), (7, 3)])
def test_workers_spread_evenly_where_nobody_asked_for_tasks(environ: dict[str, str], workers: int, each: int) -> None:
    assert slots(environ, workers) == dict.fromkeys(("n1", "n2", "m"), each)


def test_a_single_node_runs_all_workers(environ: dict[str, str]) -> None:
    one = {"SLURM_JOB_NODELIST": "n1", "SLURM_TASKS_PER_NODE": "1", "SLURM_NTASKS": "1"}
    assert slots({**environ, **one}, 5) == {"n1": 5}


def test_too_few_tasks_are_refused_with_what_to_ask_for(environ: dict[str, str]) -> None:
    asked = {**environ, "SLURM_NTASKS": "3", "SLURM_TASKS_PER_NODE": "1(x3)"}
    said = "Slurm job 42 has 3 tasks for 7 workers; ask for a task per worker: --ntasks-per-node=3, or --ntasks=7"
    with pytest.raises(UsageError, match=f"^{re.escape(said)}$"):
        job_in(asked).hosts(7)


def test_each_node_gets_a_step_of_its_own_with_all_that_the_job_has_there(environ: dict[str, str]) -> None:
    command = job_in({**environ, "PYTHONPATH": "/a b"}).agent_command("n2")
    assert command.name == "srun on n2"
    assert command.argv[0] == f"{environ['PATH'].split(':')[0]}/srun"
    assert {"--jobid=42", "--nodelist=n2", "--nodes=1", "--ntasks=1", "--overlap"} < set(command.argv)
    assert not any(word.startswith("--het-group") for word in command.argv)
    assert command.argv[-5:] == ("env", "PYTHONPATH=/a b", sys.executable, "-m", "dynamix_ps.launch.host.agent")


def test_options_of_the_job_do_not_narrow_a_step(environ: dict[str, str]) -> None:
    """Each of these is an option of srun, too."""
    options = {"SLURM_GPUS_PER_TASK": "1", "SLURM_CPUS_PER_TASK": "1", "SLURM_EXPORT_ENV": "NONE", "SRUN_DEBUG": "3"}
    kept = {"SLURM_CONF": "/etc/slurm.conf", "HOME": "/home/me"}
    command = job_in({**environ, **options, **kept}).agent_command("n1")
    assert command.environ == {"PATH": environ["PATH"], **kept}


def test_a_node_of_a_heterogeneous_job_is_reached_in_its_component(environ: dict[str, str]) -> None:
    lists = {"SLURM_HET_SIZE": "2", "SLURM_JOB_NODELIST_HET_GROUP_0": "n1", "SLURM_JOB_NODELIST_HET_GROUP_1": "n2,m"}
    job = job_in({**environ, **lists})
    assert list(job.hosts(3)) == ["n1", "n2", "m"]
    assert [
        word for host in ("n1", "m") for word in job.agent_command(host).argv if word.startswith("--het-group")
    ] == ["--het-group=0", "--het-group=1"]


def test_without_srun(environ: dict[str, str]) -> None:
    with pytest.raises(
        EnvironmentNotReady, match=r"^host n1: there is no srun here to reach it; have Slurm's programs"
    ):
        job_in({**environ, "PATH": "/nowhere"}).agent_command("n1")


def test_one_launch_for_each_task_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(
        UsageError, match=r"^srun has started this command 20 times .*: leave srun out, or use srun --n"
    ):
        slurm_job({**environ, "SLURM_STEP_NUM_TASKS": "20"})
    assert slurm_job({**environ, "SLURM_STEP_NUM_TASKS": "1"}) is not None


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("srun: error: Unable to create step for job 42: Job/step already completing or completed", "the Slurm job is"),
        ("srun: Job 42 step creation temporarily disabled, retrying (Requested nodes are busy)", "another step has"),
        ("srun: error: Node failure on n2", "see `scontrol show node n2`"),
        ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=42.0", "ask Slurm for more memory (--mem)"),
        ("slurmstepd: error: execve(): /venv/bin/python: No such file or directory", "install the same environment"),
        ("/usr/bin/python: No module named dynamix_ps", "install this package there"),
        ("srun: error: n2: task 0: Killed", "its agent was killed there"),
        ("srun: error: something else", "see what this says: srun --overlap --nodelist=n2 --ntasks=1 hostname"),
    ],
)
def test_what_to_do_about_it(said: str, expected: str) -> None:
    assert advice("n2", 1, said.splitlines(), spoke=False).startswith(expected)


def test_of_an_agent_that_has_told_its_end_nothing_is_advised() -> None:
    assert advice("n2", 3, ("srun: error: n2: task 0: Exited with exit code 3",), spoke=True) == ""
