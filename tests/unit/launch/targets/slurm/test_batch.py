"""The batch script: what the cluster file says counts where the options of sbatch say nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dynamix_ps.config.schema import Config
from dynamix_ps.errors import UsageError
from dynamix_ps.launch.targets.slurm.batch import batch_script

LAUNCH = ("python", "-m", "dynamix_ps.cli.main", "launch", "-c", "/a b/c.yaml", "--", "python", "train.py")


def script(options: str = "", workers: int = 4, hosts: dict[str, Any] | None = None, **keys: Any) -> list[str]:
    """The lines with directives, without their beginning."""
    cluster = {"hosts": hosts or {}, "workers": ({},) * workers}
    text = batch_script(Config.model_validate({"name": "mine", "cluster": cluster, **keys}), options.split(), LAUNCH)
    first, *lines = text.splitlines()
    assert first == "#!/bin/sh"
    assert lines[-2:] == ["", "exec python -m dynamix_ps.cli.main launch -c '/a b/c.yaml' -- python train.py"]
    assert all(line.startswith("#SBATCH ") for line in lines[:-2])
    return [line.removeprefix("#SBATCH ") for line in lines[:-2]]


def test_by_default_every_worker_has_a_node_and_a_cpu_beside_the_servers() -> None:
    tail = ["--cpus-per-task=2", "--signal=B:TERM@60"]
    assert script() == ["--job-name=mine", "--nodes=4", "--ntasks-per-node=1", *tail]


def test_cpus_follow_the_threads_of_a_worker_and_the_servers() -> None:
    assert "--cpus-per-task=9" in script(env={"OMP_NUM_THREADS": "8"})
    assert "--cpus-per-task=8" in script(env={"OMP_NUM_THREADS": "8"}, comm="gloo")
    assert "--cpus-per-task=1" in script(env={"OMP_NUM_THREADS": "all"}, comm="gloo")


@pytest.mark.parametrize(
    ("options", "has", "has_not"),
    [
        ("--nodes=2", ["--nodes=2", "--ntasks-per-node=2"], ["--nodes=4"]),
        ("-N2", ["-N2", "--ntasks-per-node=2"], ["--nodes=4"]),
        ("-N 3-4 --time 1:00:00", ["-N 3-4", "--time 1:00:00", "--ntasks-per-node=2"], ["--nodes=4"]),
        ("-w n[1-2]", ["-w 'n[1-2]'", "--ntasks-per-node=2"], ["--nodes=4"]),
        ("--ntasks=4", ["--ntasks=4"], ["--nodes=4", "--ntasks-per-node=1"]),
        ("-n1 --cpus-per-task=8", ["-n1", "--cpus-per-task=8"], ["--nodes=4", "--cpus-per-task=2"]),
        ("-N2 --ntasks-per-node=8", ["--ntasks-per-node=8"], ["--ntasks-per-node=2"]),
        ("--exclusive -p gpu", ["--exclusive", "-p gpu"], ["--cpus-per-task=2"]),
        ("--job-name=other", ["--job-name=other"], ["--job-name=mine"]),
        ("--signal=B:TERM@300", ["--signal=B:TERM@300"], ["--signal=B:TERM@60"]),
        ("--no-requeue --nodelist-is-else", ["--nodes=4"], []),
    ],
)
def test_options_count_before_the_cluster_file(options: str, has: list[str], has_not: list[str]) -> None:
    lines = script(options)
    assert set(has) <= set(lines)
    assert not set(has_not) & set(lines)


def test_hosts_of_the_cluster_file_are_the_nodes() -> None:
    lines = script(hosts={"n1": {"slots": 3}, "n2": {}, "spare": {}})
    assert {"--nodes=2", "--nodelist=n1,n2", "--ntasks-per-node=3"} < set(lines)


def test_components_of_a_heterogeneous_job() -> None:
    assert script("-N1 --gpus-per-node=2 : -N2 --mem=8G", workers=6) == [
        "--job-name=mine",
        "--ntasks-per-node=2",
        "--cpus-per-task=2",
        "--signal=B:TERM@60",
        "-N1",
        "--gpus-per-node=2",
        "hetjob",
        "--ntasks-per-node=2",
        "--cpus-per-task=2",
        "-N2",
        "--mem=8G",
    ]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("-n2", "sbatch is told of 2 tasks for 4 workers; ask for a task per worker: --ntasks-per-node=1, or leave"),
        (
            "-N2 --ntasks-per-node=1",
            "sbatch is told of 2 tasks for 4 workers; ask for a task per worker: --ntasks-per-",
        ),
        ("-N2 python train.py", "'python' is no option of sbatch; the command of the workers stands behind `--`"),
        ("python", "'python' is no option of sbatch"),
    ],
)
def test_what_cannot_work_is_refused_before_it_waits_in_the_queue(options: str, reason: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(reason)}"):
        script(options)
