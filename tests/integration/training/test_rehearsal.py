"""A rehearsal against a real cluster: the same plans give the same weights; the command compares policies."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dynamix_ps.config import variables
from dynamix_ps.config.load import load_config
from dynamix_ps.run_record.run_folder import RunFolder
from dynamix_ps.sim.scenario.load import Scenario, dump_scenario
from tests.all_forked_cluster import AllForkedCluster
from tests.integration.training.test_invariants import EPOCHS, PLANS, WORKER, WORKERS, run_workers

SCRIPT = """
import sys
import torch
import dynamix_ps.torch as dynamix
torch.manual_seed(int(sys.argv[1]))
inputs = torch.randn(400, 6, generator=torch.Generator().manual_seed(1))
targets = (inputs.sum(1) > 0).long()
data = torch.utils.data.TensorDataset(inputs, targets)
model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[2]) if sys.argv[2:] else 0.05)
run = dynamix.attach(model, optimizer, data)
for inputs, targets in run.batches(epochs=6):
    optimizer.zero_grad()
    run.backward(torch.nn.functional.cross_entropy(model(inputs), targets))
    optimizer.step()
    if run.every_samples(100):
        run.evaluate(data, lambda x, y: {"accuracy": (model(x).argmax(1) == y).sum()})
run.close()
torch.save(model.state_dict(), "model.pt")
"""
WITHOUT_ARBITRATOR = """
from dynamix_ps.rehearsal.session import RehearsedSession
RehearsedSession._connect = lambda session, plan, work: None  # the test hands out the plans
"""
CLUSTER = """
batch: {min: 4, max: 64}
window: 5
policy: {name: static}
cluster:
  workers: [{batch: 16}, {batch: 16}, {batch: 16, speed: 0.25}]
"""


def rehearsed_worker(folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    """What the script of the real workers comes to in a rehearsal of the cluster file in `folder`."""
    run = RunFolder(folder / "rehearsed")
    for part in (run.workers_dir, run.roles_dir, run.arbitrator_dir):
        part.mkdir(parents=True)
    scenario = folder / "scenario.yaml"
    scenario.write_text(dump_scenario(Scenario.model_validate({"name": "any", "workers": ({"count": WORKERS},)})))
    env = {
        variables.CONFIG: str(folder / "cluster.yaml"),
        variables.RUN_DIR: str(run.path),
        variables.REHEARSAL: str(scenario),
        "TEST_JOB": json.dumps({"frameworks": ["torch"], **job}),
    }
    with AllForkedCluster(WITHOUT_ARBITRATOR + WORKER, workers=1, servers=0, env=env) as alone:
        result: dict[str, Any] = alone.results(timeout_s=60)[0]
    return result


@pytest.mark.timeout(150)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_the_same_plans_give_the_weights_of_real_workers(tmp_path: Path, prefetch: int) -> None:
    deliveries = {2: (1, PLANS[1]), 9: (2, PLANS[2]), 15: (3, PLANS[3])}
    job = {"epochs": EPOCHS}
    settings = {"comm": "byteps", "prefetch": prefetch, "lr_rule": "adascale"}
    real = run_workers(tmp_path, "torch", {**job, "deliveries": [deliveries] * WORKERS}, PLANS[0], **settings)
    rehearsed = rehearsed_worker(tmp_path, {**job, "deliveries": [deliveries]})
    assert rehearsed["history"] == real[0]["history"]
    assert set(rehearsed["history"]) == set(PLANS)
    assert rehearsed["weights"] == pytest.approx(real[0]["weights"], rel=1e-6, abs=1e-9)


@pytest.mark.timeout(120)
def test_the_command_compares_policies_with_a_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    argv = [sys.executable, "-m", "dynamix_ps", "rehearse", "-c", "cluster.yaml", "--policy", "proportional,static"]
    argv += ["--seeds", "2", "--target", "0.8", "--out", "study", "--", "python", "train.py", "{seed}"]

    def rehearse() -> str:
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
        done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    told = rehearse()
    assert "proportional against static" in told and "warning" not in told
    study = tmp_path / "study"
    page = (study / "report.md").read_text()
    assert "| proportional |" in page
    with (study / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    by_policy = {
        policy: [float(row["time_s"]) for row in rows if row["policy"] == policy]
        for policy in ("proportional", "static")
    }
    assert all(quick < slow for quick, slow in zip(*by_policy.values(), strict=True)), "one worker is slow"
    for picture in ("times.png", "curves.png"):
        assert (study / picture).stat().st_size > 5000
    run = study / "cluster-file" / "proportional" / "seed-1"
    assert load_config(run / "config.resolved.yaml").seed == 1
    before = (run / "workers" / "worker-0.jsonl").stat().st_mtime_ns
    assert rehearse().partition("report:")[0] == told.partition("report:")[0], "runs that are over are not repeated"
    assert (run / "workers" / "worker-0.jsonl").stat().st_mtime_ns == before


@pytest.mark.timeout(240)
def test_the_command_finds_a_rate_and_leaves_the_folder_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "model.pt").write_text("of a night")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def find(rate: str, *options: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "dynamix_ps", "rehearse", "-c", "cluster.yaml", "--find-rate", "--out", "race"]
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
        argv += [*options, "--", "python", "train.py", "{seed}", rate]
        return subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200, check=False)

    found = find("6")
    assert found.returncode == 0, found.stdout + found.stderr
    assert re.search(r"your rate of 6 is about [\d.]+ times too high; [\d.]+ suggested\n$", found.stdout), found.stdout
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
    again = find("6")
    assert again.returncode == 3 and "a race makes a new one" in again.stderr
    refused = find("6", "--policy", "ppo")
    assert refused.returncode == 2
    assert "--policy is for a comparison of policies" in refused.stderr
