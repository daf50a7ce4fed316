"""What rank 0 tells the others when a run begins, and the companions."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dynamix_ps.config import variables
from dynamix_ps.config.load import load_config
from dynamix_ps.other_launchers import begin
from dynamix_ps.other_launchers.duty import Duty
from dynamix_ps.other_launchers.job import StartedJob
from dynamix_ps.other_launchers.job_config import Wish
from dynamix_ps.other_launchers.meeting import JobProcess
from dynamix_ps.other_launchers.place import MeetingPlace
from worker_hooks.process.adopted import Chosen

MACHINES = ("a", "b")
PROCESSES = [JobProcess(os.getpid(), machine, "", "agent", "1") for machine in MACHINES]
JOB = StartedJob(MeetingPlace("torchrun", 0, 2, "127.0.0.1", 1), PROCESSES, ("127.0.0.1", 4001))
WISHES = [Wish(16, Chosen(), f"10.0.0.{number}") for number in (1, 2)]
Begun = tuple[dict[str, Any], dict[int, dict[str, str]]]


@pytest.fixture
def duties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Duty]]:
    """What companions are told that would be started. The environment is a worker's of a job on two machines."""
    told: list[Duty] = []

    def start(kind: str, duty: Duty, patience_s: float, record: int) -> None:
        os.close(record)
        told.append(Duty.from_json(duty.to_json()))

    monkeypatch.setattr(begin, "_start_companion", start)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith(("DMLC_", "DYNAMIX_", "BYTEPS_"))]:
        del os.environ[name]
    os.environ["DMLC_PS_ROOT_PORT"] = "4000"
    yield told
    os.environ.clear()
    os.environ.update(before)


def test_a_run_on_several_machines_says_that_its_calls_are_in_the_clear(duties: list[Duty]) -> None:
    begun, _ = begin.begin_run(JOB, WISHES)
    assert duties[0].exposed
    assert duties[0].mark.endswith("workers/worker-0.iteration")
    assert duties[0].patience_s == load_config(os.environ[variables.CONFIG]).timeouts.lease_s / 3
    assert yaml.safe_load(begun["config"])["cluster"]["insecure"]
    assert len(begun["environment"][variables.TOKEN]) == 32
    assert variables.TLS not in begun["environment"]


def test_certificates_and_a_token_of_the_user_are_used_and_stay_where_they_are(duties: list[Duty]) -> None:
    os.environ |= {variables.TLS: "/certificates", variables.TOKEN: "secret"}
    (Path.cwd() / "c.yaml").write_text("comm: byteps\ncluster: {workers: [{}, {}]}\n")
    os.environ[variables.CONFIG] = "c.yaml"
    begun, here = begin.begin_run(JOB, WISHES)
    assert not duties[0].exposed
    assert not yaml.safe_load(begun["config"])["cluster"]["insecure"]
    assert not {variables.TOKEN, variables.TLS} & begun["environment"].keys()
    assert "secret" not in str((begun, here))
    assert [role.name for role in duties[0].roles] == ["scheduler", "server-0"]
    for role in duties[0].roles:
        assert role.env | {variables.TLS: "/certificates", variables.TOKEN: "secret"} == role.env
        assert (role.env["DMLC_NUM_SERVER"], role.env["DMLC_NODE_HOST"]) == ("2", "10.0.0.1")
    assert (here[0]["DMLC_NUM_SERVER"], here[0]["DMLC_WORKER_ID"]) == ("2", "0")
