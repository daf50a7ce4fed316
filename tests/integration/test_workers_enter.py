"""Workers of a job over BytePS are killed while it trains. Others enter, and all end with the result of one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dynamix_ps.run_record.run_folder import RunFolder
from tests.integration.elastic_story import KILL_SERVER
from tests.integration.test_lost_workers import MODEL, SAMPLES, replayed
from tests.launching import assert_nothing_left, dynamix, run_id_in, wait_for

pytestmark = pytest.mark.timeout(300)

# Every worker writes down which samples were in every sum, with which factor on the rate. Those in KILLED end by
# kill -9 in this iteration, the first time, and server 0 in iteration SERVER_AT. All train until there were four for
# ENOUGH iterations: the sums tell.
TRAIN = (
    MODEL
    + KILL_SERVER
    + """\
import json, os, signal, time
import dynamix_ps.torch as dynamix
run = dynamix.attach(model, optimizer, data)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9999)
run.register(scheduler=scheduler)
first = os.environ["DYNAMIX_STARTS"] == "0"
sums = open(f"sums-{run.rank}.jsonl", "w", buffering=1)
whole = 0  # iterations with all workers after the last loss
for epoch in range(run.epoch, 10_000):
    for inputs, targets in run.batches(epochs=epoch + 1):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        if first and KILLED.get(run.rank) == run.iteration:
            while not run._session.may_leave:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGNAL)
        if first and run.rank == 1 and run.iteration == SERVER_AT:
            kill_server(0)
        run.backward(loss)
        rate = optimizer.param_groups[0]["lr"]
        optimizer.step()
        scheduler.step()
        members, step = run._now.sum.view.members, run._now.batch.step
        present = [rank for rank, member in enumerate(members) if member]
        numbers = [int(number) for rank in present for number in run._sampler.indices(step, rank)]
        factor = run._now.rate.factor * rate / RATE
        sizes = list(run._now.sum.view.worker_samples)
        sums.write(json.dumps({"present": present, "numbers": numbers, "factor": factor, "sizes": sizes}) + "\\n")
        whole = whole + 1 if len(present) == 4 and run.iteration > max(KILLED.values()) + 1 else 0
        time.sleep(0.02)  # a longer training is no better test
    if whole >= ENOUGH:
        break
def score(inputs, targets):
    return {"loss": float(torch.nn.functional.cross_entropy(model(inputs), targets, reduction="sum"))}
found = run.evaluate(data, score)["loss"]
expected = score(*data.tensors)["loss"] / len(data)
assert abs(found - expected) < 1e-4, f"{found} by all, {expected} by one"
torch.save([p.detach() for p in model.parameters()], f"weights-{run.rank}.pt")
run.close()
"""
)
CLUSTER = """\
name: t
run_dir: runs
cluster: {servers: 2, workers: [{batch: 6}, {batch: 6}, {batch: 6}, {batch: 6}]}
batch: {min: 2, max: 64}
window: 5
lr_rule: linear
elastic: {min_workers: 2, restarts: 3, keep: KEEP}
prefetch: PREFETCH
metrics: {network: 'off', tensorboard: false}
"""


def script_of(killed: dict[int, int], signal: str, server_at: int = -1) -> str:
    named = {"KILLED": repr(killed), "ENOUGH": "20", "RATE": "0.05", "SIGNAL": signal, "SERVER_AT": str(server_at)}
    script = TRAIN
    for name, value in named.items():
        script = script.replace(name, value)
    return script


@pytest.mark.parametrize(
    ("killed", "server_at", "keep", "prefetch"),
    [({2: 30}, -1, "global", 0), ({0: 30, 3: 30}, -1, "local", 2), ({2: 30}, 20, "global", 0)],
    ids=["one", "the first too", "after a server"],
)
def test_a_restart_enters(tmp_path: Path, killed: dict[int, int], server_at: int, keep: str, prefetch: int) -> None:
    """The second time the one that leads is lost, and so is another; and batches are prepared ahead."""
    (tmp_path / "cluster.yaml").write_text(CLUSTER.replace("KEEP", keep).replace("PREFETCH", str(prefetch)))
    script = script_of(killed, "SIGKILL", server_at)
    (tmp_path / "train.py").write_text(script)
    job = dynamix("launch", "-c", "cluster.yaml", "--", "python", "train.py", cwd=tmp_path)
    output, _ = job.communicate(timeout=260)
    assert job.returncode == 0, output
    weights = [torch.load(tmp_path / f"weights-{rank}.pt") for rank in range(4)]
    assert all(torch.equal(*pair) for other in weights[1:] for pair in zip(weights[0], other, strict=True)), (
        "bit by bit"
    )

    told = [[json.loads(line) for line in (tmp_path / f"sums-{n}.jsonl").read_text().splitlines()] for n in range(4)]
    sums = told[1]  # of a worker that was there all the time
    for rank in killed:
        assert told[rank] == sums[-len(told[rank]) :], "from its entry on a newcomer sees the same sums"
        assert rank not in sums[-len(told[rank]) - 1]["present"]
        assert all(one["sizes"][rank] for one in told[rank]), "it has its share"
    order = [number for one in sums for number in one["numbers"]]
    epochs = [order[begin : begin + SAMPLES] for begin in range(0, len(order), SAMPLES)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(SAMPLES))] * len(epochs), "every sample once per epoch"
    for found, expected in zip(weights[0], replayed(sums), strict=True):
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5), "after some hundred steps"

    folder = RunFolder((tmp_path / "runs" / "latest").resolve())
    summary = json.loads(folder.summary_json.read_text())
    of_server = "; server-0 was killed by SIGKILL" if server_at >= 0 else ""
    assert summary["reason"] == f"all workers finished{of_server}"
    assert summary["losses"] and summary["arrivals"][-1].startswith("4 of 4 workers from iteration ")
    assert [row["state"] for row in summary["per_worker"]] == ["finished"] * 4
    assert_nothing_left(run_id_in(folder.path.name))


def test_one_that_has_left_comes_back_by_the_command(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(CLUSTER.replace("KEEP", "global").replace("PREFETCH", "0"))
    (tmp_path / "train.py").write_text(script_of({2: 30}, "SIGUSR1"))
    job = dynamix("launch", "-c", "cluster.yaml", "--", "python", "train.py", cwd=tmp_path)
    left = '"worker_left"'
    records = tmp_path / "runs" / "latest" / "workers" / "worker-2.jsonl"
    wait_for(lambda: (records.exists() and left in records.read_text()) or job.poll() is not None, "leave", limit_s=120)
    asking = dynamix("join", "2", cwd=tmp_path)
    told, _ = asking.communicate(timeout=120)
    output, _ = job.communicate(timeout=100)
    assert (asking.returncode, job.returncode) == (0, 0), told + output
    assert told.startswith("worker 2 has entered; 4 workers go on from iteration "), told
    weights = [torch.load(tmp_path / f"weights-{rank}.pt") for rank in range(4)]
    assert all(torch.equal(*pair) for other in weights[1:] for pair in zip(weights[0], other, strict=True)), (
        "bit by bit"
    )
    folder = RunFolder((tmp_path / "runs" / "latest").resolve())
    summary = json.loads(folder.summary_json.read_text())
    assert summary["reason"] == "all workers finished"
    assert summary["losses"] == [] and len(summary["departures"]) == len(summary["arrivals"]) == 1
    assert_nothing_left(run_id_in(folder.path.name))
