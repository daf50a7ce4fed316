"""Two workers of a script that keeps its own checkpoint files, and two workers whose seeds differ."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.launching import cluster_file, dynamix

pytestmark = pytest.mark.timeout(120)

SCRIPT = """
import json, os, sys, torch
import dynamix_ps.torch as dynamix

job = json.loads(sys.argv[1])
rank = int(os.environ["DMLC_WORKER_ID"])
torch.manual_seed(rank)
inputs = torch.randn(157, 3, generator=torch.Generator().manual_seed(0))
data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True), torch.arange(157))
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
saved = torch.load("own.pt") if job.get("resume") else None
if saved and rank in job["resume"]:
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
run = dynamix.attach(model, optimizer, data, seed=job["seeds"][rank])
if saved and rank in job["resume"]:
    if rank in job.get("moved", []):
        saved["run"]["position"]["cursor"]["position"] += 1
    run.load_state_dict(saved["run"])
seen = []
for epoch in range(run.epoch, job["epochs"]):
    for x, y, numbers in run.batches(epochs=epoch + 1):
        optimizer.zero_grad()
        run.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
        seen += numbers.tolist()
        if job.get("stop") == run.iteration:
            break
    if job.get("stop") == run.iteration:
        break
if run.rank == 0:
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "run": run.state_dict()}
    torch.save(states, "own.pt")
weights = [p.flatten().tolist() for p in model.parameters()]
print("result", json.dumps({"rank": rank, "seen": seen, "iteration": run.iteration, "weights": weights}), flush=True)
"""


def train(folder: Path, **job: Any) -> tuple[int, list[dict[str, Any]], str]:
    """(exit code, results in the order of ranks, output) of two workers."""
    script = folder / "own.py"
    script.write_text(SCRIPT)
    file = cluster_file(folder, "batch: {min: 1}\n", workers="[{batch: 12}, {batch: 4}]", comm="gloo")
    arguments = json.dumps({"seeds": [3, 3], "epochs": 3} | job)
    process = dynamix("launch", "-c", str(file), "--", "python", str(script), arguments, cwd=folder)
    output, _ = process.communicate(timeout=60)
    results = [json.loads(line.split("result ", 1)[1]) for line in output.splitlines() if "result {" in line]
    return process.returncode, sorted(results, key=lambda result: result["rank"]), output


def test_a_script_with_files_of_its_own_goes_on_where_it_stopped(tmp_path: Path) -> None:
    _, whole, _ = train(tmp_path)
    code, first, output = train(tmp_path, stop=14)  # in the middle of the second epoch
    assert (code, [result["iteration"] for result in first]) == (0, [14, 14]), output
    code, second, output = train(tmp_path, resume=[0, 1], seeds=[8, 9])
    assert code == 0, output
    for rank in (0, 1):
        assert second[rank]["iteration"] == whole[rank]["iteration"]
        assert first[rank]["seen"] + second[rank]["seen"] == whole[rank]["seen"]
        assert second[rank]["weights"] == whole[rank]["weights"]


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"resume": [0]}, "worker 0 sends the gradients of iteration 10; worker 1 sends the gradients of iteration 0"),
        (
            {"resume": [0, 1], "moved": [1]},
            r"at different places in the data in iteration 10 \(worker 0: epoch 1, sample 0, seed 3, "
            r"worker 1: epoch 1, sample 1, seed 3\); .* give run.load_state_dict\(\) the same state on every worker",
        ),
    ],
)
def test_workers_that_load_different_places_stop(tmp_path: Path, job: dict[str, Any], message: str) -> None:
    train(tmp_path, epochs=1)
    code, results, output = train(tmp_path, **job)
    assert (code, results) == (4, [])
    assert len(re.findall(message, output)) >= 2, output


def test_the_seed_of_worker_0_is_everybodys(tmp_path: Path) -> None:
    code, results, output = train(tmp_path, seeds=[3, 4], epochs=1)
    assert code == 0, output
    assert sorted(results[0]["seen"] + results[1]["seen"]) == list(range(157))
    assert "worker 1: seed 4 is not used, rank 0's is: 3" in output
    assert output.count("is not used") == 1
