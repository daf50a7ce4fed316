"""Every worker chooses its own size, on BytePS and around the ring, and nobody decides for all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dynamix_ps.run_record.run_folder import RunFolder
from tests.integration.training.replay import replayed
from tests.launching import assert_nothing_left, dynamix, ends, run_id_in

SAMPLES, EPOCHS = 600, 20
MODEL = f"""\
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
data = torch.utils.data.TensorDataset(torch.randn({SAMPLES}, 20).double(), torch.randint(0, 4, ({SAMPLES},)))
model = torch.nn.Sequential(torch.nn.Linear(20, 256), torch.nn.ReLU(), torch.nn.Linear(256, 4)).double()
optimizers = [torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)]
def before(iteration): ...
"""
# Every worker writes down the sizes of every iteration, the samples, and the factor on the rate.
TRAIN = (
    MODEL
    + f"""\
import json, os, signal
import dynamix_ps.torch as dynamix
[optimizer] = optimizers
run = dynamix.attach(model, optimizer, data)
sums = open(f"sums-{{run.rank}}-from-{{run.iteration}}.jsonl", "w", buffering=1)
for inputs, targets in run.batches(epochs={EPOCHS}):
    if str(run.iteration) == os.environ.get("KILLED_AT") and run.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.zero_grad()
    run.backward(torch.nn.functional.cross_entropy(model(inputs), targets))
    optimizer.step()
    step, plan = run.training.now.batch.step, run.training.now.batch.plan
    numbers = [int(number) for rank in range(run.size) for number in run.training.data.sampler.indices(step, rank)]
    line = {{"plan": plan.batch_sizes, "sizes": step.sizes, "numbers": numbers, "factor": run.training.now.rate.factor}}
    sums.write(json.dumps(line) + "\\n")
torch.save([p.detach() for p in model.parameters()], f"weights-{{run.rank}}.pt")
run.close()
"""
)
CLUSTER = """\
name: t
run_dir: runs
comm: COMM
cluster: {workers: [{batch: 16}, {batch: 16, speed: 0.5}, {batch: 16, speed: 0.25}]}
batch: {min: 2, max: 64}
window: 10
lr_rule: linear
emulation: hook
policy: {name: stigmergy}
metrics: {network: 'off', tensorboard: false}
"""


@pytest.mark.timeout(240)
@pytest.mark.parametrize("comm", ["byteps", "gloo"])
def test_workers_choose_their_own_sizes_and_come_to_the_result_of_one_process(tmp_path: Path, comm: str) -> None:
    (tmp_path / "cluster.yaml").write_text(CLUSTER.replace("COMM", comm))
    (tmp_path / "train.py").write_text(TRAIN)
    job = dynamix("launch", "-c", "cluster.yaml", "--", "python", "train.py", cwd=tmp_path)
    ends(job, 0, limit_s=200)

    written = [(tmp_path / f"sums-{rank}-from-0.jsonl").read_text() for rank in range(3)]
    assert written[0] == written[1] == written[2], "the same sizes in the same iterations"
    sums = [json.loads(line) for line in written[0].splitlines()]
    plans = [tuple(one["plan"]) for one in sums]
    assert len(set(plans)) > 3, "sizes change"
    weights = [torch.load(tmp_path / f"weights-{rank}.pt") for rank in range(3)]
    for other in weights[1:]:
        assert all(map(torch.equal, weights[0], other)), "bit for bit"
    for found, expected in zip(weights[0], replayed(MODEL, sums), strict=True):
        assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12)

    folder = RunFolder((tmp_path / "runs" / "latest").resolve())
    assert not (folder.path / "arbitrator" / "journal.jsonl").exists(), "nobody decides for all"
    assert not (folder.path / "arbitrator" / "watch.jsonl").exists(), "and nobody is started for it"
    assert_nothing_left(run_id_in(folder.path.name))


@pytest.mark.timeout(300)
def test_a_lost_worker_ends_the_job_by_name_and_a_resumed_one_chooses_sizes_again(tmp_path: Path) -> None:
    """Nobody but the launcher is there to see the loss. The actors begin anew at the sizes of the checkpoint."""
    saved, killed = 30, 47
    text = CLUSTER.replace("COMM", "gloo") + f"checkpoint_every: {saved}\n"
    (tmp_path / "cluster.yaml").write_text(text)
    (tmp_path / "train.py").write_text(TRAIN)
    train = ("--", "python", "train.py")
    first = dynamix("launch", "-c", "cluster.yaml", *train, cwd=tmp_path, KILLED_AT=str(killed))
    output, _ = first.communicate(timeout=120)
    assert first.returncode != 0
    assert f"worker-1 was killed by SIGKILL at iteration {killed}" in output
    before = RunFolder((tmp_path / "runs" / "latest").resolve())
    assert_nothing_left(run_id_in(before.path.name))

    again = dynamix(
        "launch", "-c", "cluster.yaml", "--resume", str(before.path / "checkpoints" / "last.pt"), *train, cwd=tmp_path
    )
    output = ends(again, 0, limit_s=150)
    steps = [
        [json.loads(line) for line in (tmp_path / f"sums-0-from-{begin}.jsonl").read_text().splitlines()]
        for begin in (0, saved)
    ]
    assert steps[1][0]["plan"] == steps[0][saved]["plan"], "it goes on with the sizes of the checkpoint"
    assert len({tuple(one["plan"]) for one in steps[1]}) > 2, "and changes them"
    expected = replayed(MODEL, steps[0][:saved] + steps[1])
    for found, wanted in zip(torch.load(tmp_path / "weights-2.pt"), expected, strict=True):
        assert torch.allclose(found, wanted, rtol=1e-9, atol=1e-12)
    assert_nothing_left(run_id_in((tmp_path / "runs" / "latest").resolve().name))
