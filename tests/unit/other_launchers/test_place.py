"""Where processes meet, by the variables of their launcher."""

from __future__ import annotations

import pytest

from dynamix_ps.errors import UsageError
from dynamix_ps.other_launchers.place import MeetingPlace, meeting_place
from worker_hooks.process.launched import started_elsewhere

BARE = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
SRUN = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "PMIX_NAMESPACE": "prterun-a-17@1"}


def place(environ: dict[str, str]) -> MeetingPlace:
    started = started_elsewhere(environ)
    assert started is not None
    return meeting_place(started, environ)


def test_a_store_of_ours_is_beside_that_of_the_script():
    assert place(BARE) == MeetingPlace("torchrun", 1, 2, "10.0.0.1", 29_501)
    assert place(BARE | {"MASTER_PORT": "65535"}).port == 65_534


def test_the_store_of_torchruns_agent_is_used():
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_RUN_ID": "a"}
    found = place(BARE | agent)
    assert (found.port, found.hosted, found.attempt, found.job) == (29_500, True, 2, "a")


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ({"SLURM_STEP_NUM_NODES": "1"}, "127.0.0.1"),
        ({"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "node[07-09,12],other"}, "node07"),
        ({"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "a1-x,b"}, "a1-x"),
        ({"SLURM_STEP_NUM_NODES": "2", "MASTER_ADDR": "10.0.0.9"}, "10.0.0.9"),
    ],
)
def test_tasks_of_srun_meet_on_the_first_node(nodes: dict[str, str], host: str):
    found = place(SRUN | nodes)
    assert (found.rank, found.size, found.host) == (3, 4, host)


def test_all_processes_of_a_job_find_the_same_port_and_other_jobs_another():
    here = OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    first = place(here)
    assert first.host == "127.0.0.1"
    assert place(here | {"OMPI_COMM_WORLD_RANK": "0"}).port == first.port
    assert place(here | {"PMIX_NAMESPACE": "prterun-a-18@1"}).port != first.port
    assert place(here | {"MASTER_PORT": "4000"}).port == 4001


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, "MASTER_ADDR is not set"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "MASTER_PORT is not set"),
        (BARE | {"RANK": ""} | {"LOCAL_RANK": "0"}, "RANK is not set"),
        (BARE | {"RANK": "2"}, "RANK is 2, expected less than WORLD_SIZE, which is 2"),
        (BARE | {"MASTER_PORT": "70000"}, "MASTER_PORT is '70000', expected a number from 0 to 65535"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, "MASTER_ADDR is not set"),
        ({"PMI_SIZE": "2", "PMI_RANK": "0", "MPI_LOCALNRANKS": "2"}, "MASTER_PORT is not set"),
        ({"HOROVOD_SIZE": "2", "HOROVOD_RANK": "0"}, "horovodrun started 2 processes .* does not tell where they meet"),
        ({"SLURM_NTASKS": "2", "SLURM_PROCID": "0"}, "srun started 2 processes .* does not tell where they meet"),
    ],
)
def test_half_a_set_of_variables_is_refused(environ: dict[str, str], named: str):
    with pytest.raises(UsageError, match=named):
        place(environ)
