"""Workers of a job are killed while it trains, and the others go on to the result of one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dynamix_ps.run_record.run_folder import RunFolder
from tests.launching import assert_nothing_left, dynamix, run_id_in

pytestmark = pytest.mark.timeout(240)

SAMPLES, EPOCHS, RATE = 400, 6, 0.05
MODEL = f"""\
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
data = torch.utils.data.TensorDataset(torch.randn({SAMPLES}, 20), torch.randint(0, 4, ({SAMPLES},)))
model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr={RATE}, momentum=0.9)
"""
# Every worker writes down which samples were in every sum, with which factor on the rate. Those in KILLED end by
# kill -9 in this iteration.
TRAIN = (
    MODEL
    + """\
import json, os, signal
import dynamix_ps.torch as dynamix
run = dynamix.attach(model, optimizer, data)
sums = open(f"sums-{run.rank}.jsonl", "w", buffering=1)
for inputs, targets in run.batches(epochs=EPOCHS):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    if KILLED.get(run.rank) == run.iteration:
        os.kill(os.getpid(), signal.SIGKILL)
    run.backward(loss)
    optimizer.step()
    members, step = run._now.sum.view.members, run._now.batch.step
    present = [rank for rank, member in enumerate(members) if member]
    numbers = [int(number) for rank in present for number in run._sampler.indices(step, rank)]
    sums.write(json.dumps({"present": present, "numbers": numbers, "factor": run._now.rate.factor}) + "\\n")
def score(inputs, targets):
    return {"loss": float(torch.nn.functional.cross_entropy(model(inputs), targets, reduction="sum"))}
found = run.evaluate(data, score)["loss"]
whole = score(*data.tensors)["loss"] / len(data)
assert abs(found - whole) < 1e-4, f"{found} by those that are left, {whole} by one"
torch.save([p.detach() for p in model.parameters()], f"weights-{run.rank}.pt")
run.close()
"""
)
_CLUSTER = """\
name: t
run_dir: runs
comm: COMM
cluster: {SERVERS workers: [{batch: 6}, {batch: 6}, {batch: 6}, {batch: 6}]}
batch: {min: 2, max: 64}
window: 5
lr_rule: linear
elastic: {min_workers: 2}
metrics: {network: 'off', tensorboard: false}
"""


def cluster(comm: str) -> str:
    """The cluster file of a job over this data plane."""
    return _CLUSTER.replace("COMM", comm).replace("SERVERS", "servers: 2," if comm == "byteps" else "")


def replayed(sums: list[dict[str, Any]]) -> list[torch.Tensor]:
    """The weights of one process after steps with these samples and rates."""
    own: dict[str, Any] = {}
    exec(MODEL, own)
    inputs, targets = own["data"].tensors
    for one in sums:
        own["optimizer"].param_groups[0]["lr"] = RATE * one["factor"]
        own["optimizer"].zero_grad()
        torch.nn.functional.cross_entropy(own["model"](inputs[one["numbers"]]), targets[one["numbers"]]).backward()
        own["optimizer"].step()
    return [parameter.detach() for parameter in own["model"].parameters()]


@pytest.mark.parametrize("comm", ["byteps", "gloo"])
def test_the_others_go_on_to_the_result_of_one_process(comm: str, tmp_path: Path) -> None:
    """First an ordinary worker is lost, then the one that leads."""
    (tmp_path / "cluster.yaml").write_text(cluster(comm))
    script = TRAIN.replace("KILLED", "{2: 30, 0: 60}").replace("EPOCHS", str(EPOCHS))
    (tmp_path / "train.py").write_text(script)
    job = dynamix("launch", "-c", "cluster.yaml", "--", "python", "train.py", cwd=tmp_path)
    output, _ = job.communicate(timeout=200)
    assert job.returncode == 0, output
    first, second = (torch.load(tmp_path / f"weights-{rank}.pt") for rank in (1, 3))
    assert all(map(torch.equal, first, second)), "bit for bit"

    sums = [json.loads(line) for line in (tmp_path / "sums-1.jsonl").read_text().splitlines()]
    assert [one["present"] for one in sums[:62]] == [[0, 1, 2, 3]] * 30 + [[0, 1, 3]] * 30 + [[1, 3]] * 2
    order = [number for one in sums for number in one["numbers"]]
    epochs = [order[begin : begin + SAMPLES] for begin in range(0, len(order), SAMPLES)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(SAMPLES))] * EPOCHS, "every sample once per epoch"
    for found, expected in zip(first, replayed(sums), strict=True):
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6)

    folder = RunFolder((tmp_path / "runs" / "latest").resolve())
    summary = json.loads(folder.summary_json.read_text())
    assert summary["reason"].startswith(
        "2 of 4 workers finished: worker-2 was killed by SIGKILL at iteration 30; worker-0"
    )
    assert [loss.split(",")[0] for loss in summary["losses"]] == [
        "3 of 4 workers from iteration 30: worker 2 lost",
        "2 of 4 workers from iteration 60: worker 0 lost",
    ]
    assert [row["state"] for row in summary["per_worker"]] == ["lost", "finished", "lost", "finished"]
    assert_nothing_left(run_id_in(folder.path.name))
