"""A whole job whose workers are forked."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynamix_ps.config import variables
from dynamix_ps.launch.cleanup.release import processes_of
from dynamix_ps.launch.host.forked_roles import ForkServer
from dynamix_ps.run_record.run_folder import RunFolder
from tests.launching import assert_nothing_left, cluster_file, command_line, dynamix, environment, read_until, wait_for

pytestmark = pytest.mark.timeout(180)

TRAIN = """\
import os, sys, time
print("torch before the script:", "torch" in sys.modules)
import torch
import dynamix_ps.torch as dynamix
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
run = dynamix.attach(model, optimizer, data)
for inputs, targets in run.batches(iterations=8):
    optimizer.zero_grad()
    run.backward(torch.nn.functional.mse_loss(model(inputs), targets))
    optimizer.step()
    if run.iteration == 4 and "--wait" in sys.argv:
        print("waits")
        time.sleep(600)
run.close()
print("ends with", model.weight.sum().item())
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    one = ForkServer(tmp_path_factory.mktemp("server"), environment(PYTHONUNBUFFERED="1"))
    yield one
    one.close()


def job(folder: Path, fork: bool, *arguments: str) -> None:
    (folder / "train.py").write_text(TRAIN)
    command = json.dumps(["python", "train.py", *arguments])
    extra = f"launch: {{fork: {json.dumps(fork)}}}\nbatch: {{min: 1}}\nseed: 1\ncommand: {command}\n"
    cluster_file(folder, extra, workers="[{batch: 4}, {batch: 8}]", comm="gloo")


def test_it_trains_as_with_new_processes(tmp_path: Path, server: ForkServer) -> None:
    found = []
    for name, fork, changes in (
        ("new", False, {}),
        ("own", True, {}),
        ("shared", True, {variables.FORK_SERVER: str(server.path)}),
    ):
        folder = tmp_path / name
        folder.mkdir()
        job(folder, fork)
        output, _ = (launched := dynamix("launch", "-c", "cluster.yaml", cwd=folder, **changes)).communicate(timeout=90)
        assert launched.returncode == 0, output
        assert output.count(f"torch before the script: {fork}") == 2, output
        found += [line.split("ends with")[1] for line in output.splitlines() if "ends with" in line]
        assert_nothing_left(RunFolder((folder / "runs" / "latest").resolve()).path.name[-8:])
    assert len(found) == 6 and len(set(found)) == 1


@pytest.mark.parametrize("shared", [False, True])
def test_nothing_outlives_a_killed_launcher(tmp_path: Path, server: ForkServer, shared: bool) -> None:
    job(tmp_path, True, "--wait")
    changes = {variables.FORK_SERVER: str(server.path)} if shared else {}
    launched = dynamix("launch", "-c", "cluster.yaml", cwd=tmp_path, **changes)
    read_until(launched, "waits")
    run_id = RunFolder((tmp_path / "runs" / "latest").resolve()).path.name[-8:]
    workers = [pid for pid in processes_of(run_id) if "train.py" in command_line(str(pid))]
    assert len(workers) == 2, "they are shown as what they run"
    launched.send_signal(signal.SIGKILL)
    launched.communicate(timeout=30)
    wait_for(lambda: not list(processes_of(run_id)), "the end of all roles")
    assert_nothing_left(run_id)
