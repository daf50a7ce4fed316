"""Scripts that other launchers than torchrun start, and processes that only have the variables of torch.distributed."""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.testbed.ports import free_port
from tests.integration.other_launchers.jobs import check_adapted, job, run_of, training

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]
ACCELERATE = (
    *(sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_machines", "1"),
    *("--num_processes", "2", "--mixed_precision", "no", "--dynamo_backend", "no"),
)
MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2")


def bare(port: int) -> list[dict[str, str]]:
    """What a pod per worker has, or a shell in which somebody has typed it."""
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [{**common, "RANK": str(rank)} for rank in (0, 1)]


@pytest.mark.parametrize("place", ["before", "after"])
def test_variables_are_enough(place: str, tmp_path: Path) -> None:
    """With a process group of the script's own, whose store is at MASTER_PORT."""
    lines = (
        "import torch.distributed as dist; dist.init_process_group('gloo'); own = torch.ones(1); "
        "dist.all_reduce(own); assert own == 2, own"
    )
    command = (sys.executable, str(training(tmp_path, **{place: lines})))
    for code, output in job([command] * 2, tmp_path, bare(free_port())):
        assert code == 0, output
    check_adapted(run_of(tmp_path))


@pytest.mark.skipif(find_spec("accelerate") is None, reason="not installed: accelerate")
def test_accelerate(tmp_path: Path) -> None:
    file = training(tmp_path, before="import accelerate; state = accelerate.PartialState(cpu=True)")
    [(code, output)] = job([(*ACCELERATE, str(file))], tmp_path)
    assert code == 0, output
    check_adapted(run_of(tmp_path))


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="not installed: openmpi-bin")
def test_mpirun(tmp_path: Path) -> None:
    [(code, output)] = job([(*MPIRUN, sys.executable, str(training(tmp_path)))], tmp_path)
    assert code == 0, output
    check_adapted(run_of(tmp_path))
