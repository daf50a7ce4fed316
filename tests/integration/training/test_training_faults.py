"""Faults inside training over real BytePS: each ends with its message and exit code, or training continues."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynamix_ps.arbitrator.journal import DECISIONS
from dynamix_ps.run_record.json_lines import JsonLinesTail
from dynamix_ps.run_record.run_folder import RunFolder
from tests.launching import assert_nothing_left, cluster_file, dynamix, ends, kill_all, run_id_in, summary_in, wait_for

pytestmark = pytest.mark.timeout(150)

SCRIPT = """
import os, sys, torch
from torch import nn
import dynamix_ps.torch as dynamix

rank, fault = int(os.environ["DMLC_WORKER_ID"]), sys.argv[1]
torch.manual_seed(0)
inputs = torch.randn(24 if fault == "few" else 400, 6)
data = torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long())
torch.manual_seed(rank)
model = nn.Linear(6, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = dynamix.attach(model, optimizer, data)
for x, y in run.batches(iterations=int(os.environ.get("ITERATIONS", "40"))):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    if fault == "nan" and rank == 1 and run.iteration == 7:
        loss = loss * float("nan")
    if fault == "quits" and rank == 1 and run.iteration == 5:
        sys.exit(0)
    if fault == "raises" and rank == 1 and run.iteration == 5:
        raise RuntimeError("from the user's own code")
    run.backward(loss)
    optimizer.step()
print("weights", torch.cat([p.detach().flatten() for p in model.parameters()]).tolist(), flush=True)
"""


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait(10)


def launch(
    folder: Path, started: list[subprocess.Popen[str]], fault: str, extra: str = "", mode: str = "'off'", **environ: str
) -> subprocess.Popen[str]:
    (folder / "train.py").write_text(SCRIPT)
    workers = "[{batch: 16}, {batch: 16}]"
    base = "batch: {min: 4}\nemulation: none\n"
    file = cluster_file(folder, base + extra, workers=workers, comm="byteps", mode=mode)
    process = dynamix("launch", "-c", str(file), "--", "python", "train.py", fault, cwd=folder, **environ)
    started.append(process)
    return process


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("few", r"data set has 24 samples but one iteration takes 32 \(16 \+ 16\)"),
        ("nan", r"loss of worker 1 is not finite in iteration 7"),
        ("quits", r"worker 1 calls run.close\(\), or its script has ended, after 5 iterations"),
        ("raises", r"from the user's own code"),
    ],
)
def test_a_fault_in_training_ends_the_job_with_its_reason(tmp_path, started, fault, message):
    process = launch(tmp_path, started, fault)
    output = ends(process, 4, limit_s=100)
    assert re.search(message, output), output
    assert ("Traceback" in output) == (fault == "raises"), "only the user's own error has a traceback"
    assert summary_in(tmp_path)["exit_code"] == 4
    assert_nothing_left(run_id_in(output))


def test_a_damaged_data_file_is_named(tmp_path, started):
    (tmp_path / "fashion_mnist.npz").write_bytes(b"PK\x03\x04 this is not all of it")
    file = cluster_file(tmp_path, workers="[{batch: 64}, {batch: 64}]", comm="byteps")
    command = ["python", "-m", "benchmarks.workloads.train", "--path", str(tmp_path / "fashion_mnist.npz")]
    process = dynamix("launch", "-c", str(file), "--", *command, cwd=tmp_path)
    started.append(process)
    output = ends(process, 4, limit_s=100)
    assert re.search(r"error: .*fashion_mnist\.npz", output), output
    assert "Traceback" not in output
    assert_nothing_left(run_id_in(output))


def test_a_stopped_worker_is_named_by_those_who_wait_and_training_goes_on(tmp_path, started):
    """SIGSTOP one worker; the other's stall names it; after SIGCONT the run ends well."""
    extra = "timeouts: {rpc_s: 0.5, lease_s: 1.0, stall_warn_s: 1.5, stall_fail_s: 60.0}\nwindow: 5\n"
    process = launch(tmp_path, started, "none", extra, mode="adapt", ITERATIONS="2000")
    workers = tmp_path / "runs" / "latest" / "workers"

    def events(rank: int) -> list[dict]:
        path = workers / f"worker-{rank}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    try:
        journal = RunFolder(tmp_path / "runs" / "latest").journal_file
        wait_for(lambda: any(e["kind"] in DECISIONS for e in JsonLinesTail(journal).read()), "the first decision", 90)
        pid = next(e["pid"] for e in events(1) if e["kind"] == "started")
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_for(lambda: any(e["kind"] == "stall" for e in events(0)), "the stall", 30)
        finally:
            os.kill(pid, signal.SIGCONT)
        output, _ = process.communicate(timeout=100)
    finally:
        if process.poll() is None:
            kill_all(run_id_in(os.readlink(tmp_path / "runs" / "latest")), [process])
    stall = next(e for e in events(0) if e["kind"] == "stall")
    assert stall["missing"] == [1], "the one that was stopped, not the one that waits"
    assert process.returncode == 0, output
    assert re.search(r"worker 0 has waited .* missing: worker 1 \(at iteration", output), output


PLAIN = """
import os, torch
from torch import nn
import byteps.torch as bps
bps.init()
torch.manual_seed(bps.rank())
model = nn.Linear(6, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)
torch.manual_seed(0)
inputs = torch.randn(400, 6)
torch.manual_seed(0)
from worker_hooks.sampling.sampler import Cursor, GlobalSampler
sampler, cursor = GlobalSampler(400, 0), Cursor()
for _ in range(40):
    step = sampler.plan_step(cursor, (16, 16))
    cursor = step.next
    x = inputs[torch.from_numpy(sampler.indices(step, bps.rank()))]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long()).backward()
    optimizer.step()
print("weights", torch.cat([p.detach().flatten() for p in model.parameters()]).tolist(), flush=True)
"""


def weights(output: str) -> list[list[float]]:
    return [json.loads(text) for text in re.findall(r"weights (\[.*\])", output)]


def test_mode_off_trains_as_plain_byteps_does(tmp_path, started):
    """Same data order, same equal sizes; the plain script uses BytePS's own optimizer and nothing of the hook."""
    (tmp_path / "hook").mkdir()
    outputs = []
    for name, content in (("hook", SCRIPT), ("plain", PLAIN)):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "train.py").write_text(content)
        file = cluster_file(folder, "batch: {min: 4}\n", workers="[{batch: 16}, {batch: 16}]", comm="byteps")
        process = dynamix("launch", "-c", str(file), "--", "python", "train.py", "none", cwd=folder)
        started.append(process)
        output = ends(process, 0, limit_s=100)
        outputs.append(weights(output))
    hook, plain = outputs
    assert len(hook) == len(plain) == 2
    assert hook[0] == hook[1]
    assert hook[0] == pytest.approx(plain[0], rel=1e-5, abs=1e-6)
