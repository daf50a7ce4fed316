"""Launchers that leave their workers without a connection are refused."""

from __future__ import annotations

import os
import sys

import pytest

from dynamix_ps.errors import UsageError
from tests.launching import run_to_end
from worker_hooks.process.launched import check_connected, fixed_sizes_note, waiting_note
from worker_hooks.settings import Settings

TORCHRUN = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1"}
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "0"}
SRUN = {"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0"}


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        (TORCHRUN, r"torchrun started 2 processes \(WORLD_SIZE\)"),
        (OPEN_MPI, r"mpirun \(Open MPI\) started 3 processes"),
        (SRUN, "srun started 4 processes"),
        ({"SLURM_NTASKS": "2", "SLURM_PROCID": "1"}, "srun started 2 processes"),
        ({"PMI_SIZE": "2", "PMI_RANK": "0"}, "mpirun started 2 processes"),
        ({"DMLC_NUM_WORKER": "2", "DMLC_WORKER_ID": "0"}, "DMLC_NUM_WORKER is 2 .* DMLC_ROLE=worker"),
        ({"DMLC_NUM_WORKER": "2", "DMLC_ROLE": "worker"}, r"DMLC_NUM_WORKER is 2 .* \(byteps or gloo\)"),
    ],
)
def test_processes_that_nothing_connects_are_refused(environ, named):
    with pytest.raises(UsageError, match=named):
        check_connected(environ)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        TORCHRUN | {"WORLD_SIZE": "1"},
        {"WORLD_SIZE": "8"},  # an image sets it, no launcher
        SRUN | {"SLURM_STEP_NUM_TASKS": "1"},  # one process in a larger allocation
        {"SLURM_NTASKS": "4"},  # the shell of an allocation
        TORCHRUN | {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "1"},  # the only worker of a job of ours
    ],
)
def test_single_processes_are_let_in(environ):
    check_connected(environ)


@pytest.mark.slow
def test_a_script_with_half_of_torchruns_variables_ends_with_one_line():
    code = "import dynamix_ps.torch as d\nd.attach(None, None, [])"
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("DMLC_", "DYNAMIX_"))}
    done = run_to_end([sys.executable, "-c", code], env=environ | TORCHRUN)
    assert done.returncode == UsageError.exit_code
    assert done.stderr.startswith("error: MASTER_PORT is not set")
    assert len(done.stderr.splitlines()) == 1


def test_only_workers_of_a_cluster_without_its_file_are_told_that_sizes_stay():
    cluster = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "2"}
    assert "DYNAMIX_CONFIG=" in str(fixed_sizes_note(cluster))
    assert fixed_sizes_note(cluster | {"DYNAMIX_CONFIG": "cluster.yaml"}) is None
    assert fixed_sizes_note({}) is None


def test_the_settings_refuse_before_anything_is_opened(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("DMLC_", "DYNAMIX_")):
            monkeypatch.delenv(name)
    for name, value in OPEN_MPI.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="nothing connects"):
        Settings.from_environment()
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
    assert Settings.from_environment().config.comm == "local"


def test_a_worker_that_waits_names_the_place_and_the_number():
    place = {"DMLC_NUM_WORKER": "2", "DMLC_WORKER_ID": "0", "DMLC_PS_ROOT_URI": "10.0.0.1", "DMLC_PS_ROOT_PORT": "77"}
    note = waiting_note(place, 10.0)
    assert note.startswith("worker 0 has waited 10 s")
    assert "10.0.0.1:77" in note and "each of its 2 workers" in note
