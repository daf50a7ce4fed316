"""`dynamix launch` over real BytePS: scheduler, server, two workers with a hook, and faults that end them.

The tests run with torch, with MXNet, and over the ring, which needs neither scheduler nor server.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dynamix_ps.launch.cleanup.release import processes_of
from dynamix_ps.run_record.run_folder import RunFolder
from tests.integration.training.small_training import NEEDS_MXNET
from tests.launching import assert_nothing_left, dynamix, ends, kill_all, read_until, run_id_in, scratch_of, wait_for

pytestmark = pytest.mark.timeout(180)

CLUSTER = """\
name: t
run_dir: {runs}
comm: {comm}
cluster: {{host: "{host}", workers: [{{batch: 24}}, {{batch: 8, speed: 0.5}}]}}
batch: {{min: 4, max: 64}}
window: 5
policy: {{name: {policy}}}
"""
# A small network on random data; goes on for so many iterations.
TRAIN = """\
import torch
import dynamix_ps.torch as dynamix
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(4000, 20), torch.randint(0, 4, (4000,)))
model = torch.nn.Linear(20, 4)
run = dynamix.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), data)
for inputs, targets in run.batches(iterations={iterations}):
    run.optimizers[0].zero_grad()
    run.backward(torch.nn.functional.cross_entropy(model(inputs), targets))
    run.optimizers[0].step()
    if run.iteration == 20:
        print("in training", flush=True)
run.close()
"""
TRAIN_MXNET = """\
import dynamix_ps.mxnet as dynamix
import mxnet as mx
from mxnet import autograd, gluon
mx.random.seed(0)
data = gluon.data.ArrayDataset(mx.nd.random.normal(shape=(4000, 20)), mx.nd.random.randint(0, 4, shape=(4000,)))
net, loss_function = gluon.nn.Dense(4), gluon.loss.SoftmaxCrossEntropyLoss()
net.initialize()
run = dynamix.attach(net, gluon.Trainer(net.collect_params(), "sgd", {{"learning_rate": 0.1}}), data)
for inputs, targets in run.batches(iterations={iterations}):
    with autograd.record():
        loss = loss_function(net(inputs), targets).mean()
    run.backward(loss)
    run.adapter.trainer.step(1)
run.close()
"""


def until_planned(training: str) -> str:
    """This training, which also goes on until a plan of the arbitrator is in force."""
    enough = "    if run.iteration >= {iterations} and run.training.plans.applied:\n        break\nrun.close()"
    return training.replace("iterations={iterations}", "epochs=1_000_000").replace("run.close()", enough)


class Running:
    def __init__(
        self,
        folder: Path,
        iterations: int,
        policy: str = "random",
        comm: str = "byteps",
        training: str = TRAIN,
        host: str = "127.0.0.1",
        plots: str = "no",
    ) -> None:
        file, script = folder / "cluster.yaml", folder / "train.py"
        file.write_text(CLUSTER.format(runs=folder / "runs", policy=policy, comm=comm, host=host))
        script.write_text(training.format(iterations=iterations))
        self.process = dynamix("launch", "-c", str(file), "--", "python", "train.py", cwd=folder, DYNAMIX_PLOTS=plots)
        self.output = read_until(self.process, "run folder")
        self.run_id = run_id_in(self.output)
        self.folder = RunFolder.open(folder / "runs" / "latest")

    def end(self) -> str:
        rest, _ = self.process.communicate()
        self.output += rest
        return self.output

    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads(self.folder.summary_json.read_text())
        return summary

    def pid_of(self, role: str) -> int:
        """The process that a role has become, by its role and number in its environment."""
        kind, _, number = role.partition("-")
        marks = {f"DMLC_ROLE={kind}"} | ({f"DMLC_WORKER_ID={number}"} if kind == "worker" else set())
        module = {"worker": "train.py", "server": "server_hooks.server", "scheduler": "server_hooks.scheduler"}[kind]
        for pid in processes_of(self.run_id):
            there = set(Path(f"/proc/{pid}/environ").read_text().split("\0"))
            if marks <= there and module in Path(f"/proc/{pid}/cmdline").read_text():
                return pid
        raise AssertionError(f"{role} is not running")


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Running]]:
    """Put what you start in here; it is ended with the test."""
    runs: list[Running] = []
    yield runs
    for run in runs:
        kill_all(run.run_id, [run.process])
        assert_nothing_left(run.run_id)


@pytest.mark.parametrize(
    ("training", "comm", "version", "roles"),
    [
        pytest.param(TRAIN, "byteps", "0.2.5", {"scheduler", "server-0"}, id="torch-byteps"),
        pytest.param(TRAIN, "gloo", "torch", {"arbitrator"}, id="torch-gloo"),
        pytest.param(TRAIN_MXNET, "byteps", "0.2.5", {"scheduler", "server-0"}, id="mxnet-byteps", marks=NEEDS_MXNET),
    ],
)
def test_a_whole_run_adapts_and_leaves_nothing(
    tmp_path: Path, started: list[Running], training: str, comm: str, version: str, roles: set[str]
) -> None:
    plots = "yes" if comm == "gloo" else "no"
    started.append(run := Running(tmp_path, iterations=200, comm=comm, training=until_planned(training), plots=plots))
    output = run.end()
    assert run.process.returncode == 0, output
    summary = run.summary()
    assert summary["reason"] == "all workers finished"
    assert (summary["comm"], summary["workers"]) == (comm, 2)
    assert summary["iterations"] >= 200
    assert summary["comm_version"].startswith(version)
    assert summary["plans_applied"] >= 1
    assert all("stall" not in note for note in summary["degraded"])
    assert (run.folder.plots_dir / "overview.png").exists() == (plots == "yes")
    assert ("for plots, run: dynamix report" in output) == (plots == "no")
    assert {path.name for path in tmp_path.iterdir()} == {"cluster.yaml", "train.py", "runs"}, "stray files"
    logs = {path.stem for path in run.folder.logs_dir.iterdir()}
    assert logs - {"probe"} == {"worker-0", "worker-1"} | roles
    assert_nothing_left(run.run_id)


@pytest.mark.parametrize("comm", ["byteps", "gloo"])
def test_a_whole_run_over_ipv6(tmp_path: Path, started: list[Running], comm: str) -> None:
    started.append(run := Running(tmp_path, iterations=200, comm=comm, training=until_planned(TRAIN), host="::1"))
    output = run.end()
    assert run.process.returncode == 0, output
    assert run.summary()["iterations"] >= 200
    assert run.summary()["plans_applied"] >= 1


@pytest.mark.parametrize(
    ("comm", "role"), [("byteps", "worker-1"), ("byteps", "server-0"), ("byteps", "scheduler"), ("gloo", "worker-1")]
)
def test_a_role_that_is_killed_stops_the_job_and_is_named(
    tmp_path: Path, started: list[Running], comm: str, role: str
) -> None:
    started.append(run := Running(tmp_path, iterations=1_000_000, comm=comm))
    run.output += read_until(run.process, "in training")
    os.kill(run.pid_of(role), signal.SIGKILL)
    output = run.end()
    assert run.process.returncode == 4, output
    assert f"error: {role} was killed by SIGKILL" in output
    assert f"last lines of {role}" in output
    assert run.summary()["reason"].startswith(f"{role} was killed by SIGKILL")
    assert run.summary()["iterations"] > 0
    assert_nothing_left(run.run_id)


def test_ctrl_c_in_the_middle_of_training_ends_in_order(tmp_path: Path, started: list[Running]) -> None:
    started.append(run := Running(tmp_path, iterations=1_000_000))
    run.output += read_until(run.process, "in training")
    run.process.send_signal(signal.SIGINT)
    output = run.end()
    assert run.process.returncode == 130, output
    assert run.summary()["reason"] == "interrupted by SIGINT"
    assert_nothing_left(run.run_id)


def test_a_launcher_killed_with_9_takes_the_whole_cluster_along(tmp_path: Path, started: list[Running]) -> None:
    started.append(run := Running(tmp_path, iterations=1_000_000))
    run.output += read_until(run.process, "in training")
    run.process.kill()
    run.end()
    wait_for(lambda: not list(processes_of(run.run_id)), "all processes of the run to end")
    wait_for(lambda: not scratch_of(run.run_id), "the socket folder to go")
    assert_nothing_left(run.run_id)


def test_a_script_without_hooks_runs_too(tmp_path: Path) -> None:
    """Plain BytePS: nothing tells the launcher that it started or finished, but servers leave after it in order."""
    (tmp_path / "cluster.yaml").write_text(
        CLUSTER.format(runs=tmp_path / "runs", policy="random", comm="byteps", host="127.0.0.1")
    )
    (tmp_path / "plain.py").write_text(
        "import byteps.torch as bps, torch\nbps.init()\nx = bps.push_pull(torch.ones(10), average=False, name='x')\n"
        "assert x.tolist() == [2.0] * 10, x\nprint('sum is right', flush=True)\nbps.shutdown()\n"
    )
    arguments = ["launch", "-c", "cluster.yaml", "--mode", "off", "--", "python", "plain.py"]
    process = dynamix(*arguments, cwd=tmp_path)
    output = ends(process, 0, limit_s=150)
    assert output.count("sum is right") == 2
    assert_nothing_left(run_id_in(output))
