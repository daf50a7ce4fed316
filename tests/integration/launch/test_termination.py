"""SIGTERM to workers that train: worker 0 writes a checkpoint of a complete iteration, and the run ends as it would."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.launching import (
    assert_nothing_left,
    begun,
    cluster_file,
    dynamix,
    ends,
    environment,
    kill_all,
    read_until,
    run_id_in,
)

pytestmark = pytest.mark.timeout(120)

# Trains for `iterations`, and prints its weights; `how` is where it saves: own, default or never.
TRAINING = """
import json, os, sys, time
import torch
import dynamix_ps.torch as dynamix

iterations, how = int(sys.argv[1]), sys.argv[2]
torch.manual_seed(0)
inputs = torch.randn(200, 3)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
run = dynamix.attach(model, optimizer, data, batch_size=16)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
run.register(scheduler=scheduler)
for x, y in run.batches(iterations=iterations):
    optimizer.zero_grad()
    run.backward(torch.nn.functional.mse_loss(model(x), y))
    optimizer.step()
    scheduler.step()
    time.sleep(0.01)
    if run.iteration == 3 and run.rank == 0:  # the others know it two iterations later
        if how == "own":
            run.save("own.pt")
        if how == "default":
            run.save()
    if run.iteration == 5:
        print("iteration 5 of worker", run.rank, os.getpid(), flush=True)
print("weights", json.dumps([p.flatten().tolist() for p in model.parameters()]), flush=True)
run.close()
"""
LONG, SHORT = "1000000", "40"


@pytest.fixture
def training(tmp_path: Path) -> Path:
    file = tmp_path / "training.py"
    file.write_text(TRAINING)
    return file


def start(training: Path, *arguments: str, **changes: str) -> subprocess.Popen[str]:
    return begun([sys.executable, str(training), *arguments], training.parent, environment(**changes))


def weights_in(output: str) -> list[Any]:
    return json.loads(next(line for line in output.splitlines() if "weights" in line).split("weights", 1)[1])


def test_one_process_saves_beside_its_own_checkpoints_and_ends_as_sigterm_does(training: Path) -> None:
    process = start(training, LONG, "own")
    read_until(process, "iteration 5")
    process.send_signal(signal.SIGTERM)
    output = ends(process, -signal.SIGTERM, limit_s=30)
    saved = torch.load(training.parent / "last.pt")["position"]["iteration"]
    assert f"worker 0 ends by SIGTERM after {saved} complete iterations" in output

    whole, _ = start(training, str(saved + 20), "never").communicate(timeout=60)
    resumed, _ = start(training, str(saved + 20), "never", DYNAMIX_RESUME="last.pt").communicate(timeout=60)
    assert weights_in(resumed) == weights_in(whole)


def test_who_never_saves_ends_at_once(training: Path) -> None:
    process = start(training, LONG, "never")
    read_until(process, "iteration 5")
    process.send_signal(signal.SIGTERM)
    output = ends(process, -signal.SIGTERM, limit_s=30)
    assert output == ""
    assert sorted(path.name for path in training.parent.iterdir()) == ["training.py"]


def test_a_script_that_hangs_ends_without_a_checkpoint(training: Path) -> None:
    training.write_text(
        TRAINING.replace('flush=True)\nprint("weights"', 'flush=True)\n        time.sleep(600)\nprint("weights"')
    )
    process = start(training, LONG, "own")
    read_until(process, "iteration 5")
    process.send_signal(signal.SIGTERM)
    output = ends(process, -signal.SIGTERM, limit_s=30)
    assert "no iteration was complete within 8 s of SIGTERM; this worker ends without a checkpoint" in output
    assert not (training.parent / "last.pt").exists()


def launch(
    training: Path, *arguments: str, comm: str, options: tuple[str, ...] = (), extra: str = "", mode: str = "'off'"
) -> Any:
    workers = "[{batch: 8}, {batch: 8}]"
    file = cluster_file(training.parent, f"batch: {{min: 1}}\n{extra}", workers=workers, comm=comm, mode=mode)
    command = ("launch", "-c", str(file), *options, "--", "python", str(training), *arguments)
    return dynamix(*command, cwd=training.parent)


def ended(process: subprocess.Popen[str]) -> tuple[str, Path]:
    """(what it still printed, its run folder) of a launched job that is to end by itself."""
    assert isinstance(process.args, list)
    output, _ = process.communicate(timeout=60)
    folder = (Path(process.args[5]).parent / "runs" / "latest").resolve()
    run_id = run_id_in(folder.name)
    try:
        assert_nothing_left(run_id)
    finally:
        kill_all(run_id)
    return output, folder


def read_both(process: subprocess.Popen[str]) -> dict[int, int]:
    """Wait until both workers are at iteration 5; returns their pids by rank."""
    pids: dict[int, int] = {}
    while len(pids) < 2:
        line = read_until(process, "iteration 5 of worker").splitlines()[-1]
        rank, pid = line.split("of worker")[1].split()
        pids[int(rank)] = int(pid)
    return pids


@pytest.mark.parametrize("comm", ["gloo", "byteps"])
def test_stopping_a_job_leaves_a_checkpoint_that_it_goes_on_from(training: Path, comm: str) -> None:
    process = launch(training, LONG, "default", comm=comm)
    read_both(process)
    process.send_signal(signal.SIGTERM)
    output, folder = ended(process)
    assert process.returncode == 130, output
    saved = torch.load(folder / "checkpoints" / "last.pt")["position"]["iteration"]
    assert saved >= 5
    for rank in (0, 1):
        assert f"worker {rank} ends by SIGTERM after {saved} complete iterations" in output

    options = ("--resume", "runs/latest/checkpoints/last.pt")
    resumed, _ = launch(training, str(saved + 20), "never", comm=comm, options=options).communicate(timeout=60)
    whole, _ = start(training, str(saved + 20), "never").communicate(timeout=60)
    for ours, plain in zip(weights_in(resumed), weights_in(whole), strict=True):
        assert ours == pytest.approx(plain, abs=1e-6)


def test_a_worker_that_is_terminated_leaves_a_checkpoint_of_worker_0(training: Path) -> None:
    process = launch(training, LONG, "default", comm="byteps")
    pids = read_both(process)
    subprocess.run(["kill", "-TERM", str(pids[1])], check=True)
    output, folder = ended(process)
    assert process.returncode == 4, output
    assert "worker-1 was killed by SIGTERM" in output
    saved = torch.load(folder / "checkpoints" / "last.pt")["position"]["iteration"]
    assert f"worker 1 ends by SIGTERM after {saved} complete iterations" in output


def test_checkpoint_on_term_can_be_switched_off(training: Path) -> None:
    process = launch(training, LONG, "default", comm="gloo", extra="checkpoint_on_term: false\n")
    read_both(process)
    process.send_signal(signal.SIGTERM)
    output, folder = ended(process)
    assert process.returncode == 130, output
    assert torch.load(folder / "checkpoints" / "last.pt")["position"]["iteration"] == 3
    assert "ends by SIGTERM" not in output


@pytest.mark.parametrize("comm", ["gloo", "byteps"])
def test_stopping_an_elastic_job_is_no_story_of_leaves_and_restarts(training: Path, comm: str) -> None:
    extra = "elastic: {min_workers: 1, restarts: 3}\n"
    process = launch(training, LONG, "default", comm=comm, extra=extra, mode="observe")
    read_both(process)
    process.send_signal(signal.SIGINT)
    output, folder = ended(process)
    assert process.returncode == 130, output
    checkpoint = folder / "checkpoints" / "last.pt"
    saved = torch.load(checkpoint)["position"]["iteration"]
    for rank in (0, 1):
        assert f"worker {rank} ends by SIGTERM after {saved} complete iterations" in output
    assert "error: interrupted by SIGINT" in output
    summary = json.loads((folder / "summary.json").read_text())
    page = (folder / "summary.md").read_text()
    for text in (output, page):
        assert not [word for word in ("cannot leave", "left", "lost", "again", "entered") if word in text], text
    assert [row["state"] for row in summary["per_worker"]] == ["stopped", "stopped"]
    assert (summary["losses"], summary["departures"], summary["iterations"]) == ([], [], saved)
    assert f"to go on from the newest checkpoint: dynamix launch --resume {checkpoint} " in output
    assert summary["resume_command"] in page


def test_a_job_that_was_resumed_says_so_and_also_where_nothing_is_left(training: Path) -> None:
    """The passes are those of `run.epochs`, which begins no loop where all are complete."""
    text = TRAINING.replace(
        "for x, y in run.batches(iterations=iterations):",
        "for _ in run.epochs(iterations):\n  for x, y in run.batches():",
    )
    training.write_text(text)
    first = launch(training, "1", "never", comm="gloo", extra="checkpoint_every: 13\n")
    _, folder = ended(first)
    assert first.returncode == 0
    checkpoint = folder / "checkpoints" / "last.pt"

    options = ("--resume", str(checkpoint))
    second = launch(training, "2", "never", comm="gloo", options=options)
    output, folder = ended(second)
    assert second.returncode == 0, output
    assert f"note: training goes on from {checkpoint}, after 13 iterations, in epoch 1" in output
    assert f"\nwent on from {checkpoint}, after 13 iterations\n26 iterations, 13 of them in this run, " in output
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["resumed"]["iterations_of_this_run"] == 13
    assert (summary["samples"], summary["resumed"]["samples_of_all_runs"]) == (200, 400)

    third = launch(training, "1", "never", comm="gloo", options=options)
    output, _ = ended(third)
    assert third.returncode == 0, output
    says = f"nothing was left to train: {checkpoint} has 13 iterations, the script asks for no more"
    assert f"\n{says}\n13 iterations, 0 of them in this run\n" in output
    assert "Traceback" not in output
