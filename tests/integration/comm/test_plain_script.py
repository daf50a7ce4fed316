"""A training script that knows only byteps.torch, under dynamix-bpslaunch: it ends, and its sums are right."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from benchmarks.testbed.ports import free_port
from benchmarks.workloads import data, models
from benchmarks.workloads.torch_samples import SampleSet
from tests.launching import ROOT

WORKERS, STEPS, BATCH, RATE = 2, 60, 32, 0.05


def expected_checksum() -> tuple[float, float]:
    """One process on the concatenated batches: what the mean of the workers' gradients must lead to."""
    torch.manual_seed(0)
    digits = data.load("digits")
    images, labels = SampleSet(digits.train).tensors
    model = models.make_model("mlp", digits.shape, digits.classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    for step in range(STEPS):
        chosen = torch.arange(step * WORKERS * BATCH, (step + 1) * WORKERS * BATCH) % len(labels)
        optimizer.zero_grad()
        cross_entropy(model(images[chosen]), labels[chosen]).backward()
        optimizer.step()
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).double()
    return float(weights.sum()), float(weights.square().sum())


@contextmanager
def started(folder: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """All roles through dynamix-bpslaunch, each in its own process group, output in a file; killed at the end."""
    base = {name: value for name, value in os.environ.items() if not name.startswith(("DMLC_", "BYTEPS_", "DYNAMIX_"))}
    base |= {
        "DMLC_NUM_WORKER": str(WORKERS),
        "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    script = ["-m", "benchmarks.workloads.plain_byteps"]
    settings = ["--steps", str(STEPS), "--batch", str(BATCH), "--lr", str(RATE)]
    roles: dict[str, dict[str, str]] = {"scheduler": {}, "server": {}}
    roles |= {f"worker-{rank}": {"DMLC_WORKER_ID": str(rank)} for rank in range(WORKERS)}
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, own in roles.items():
            role = name.partition("-")[0]
            command = [sys.executable, "-m", "dynamix_ps.cli.bpslaunch"]
            command += [sys.executable, *script, *settings] if role == "worker" else []
            with (folder / name).open("wb") as out:
                processes[name] = subprocess.Popen(
                    command,
                    env=base | own | {"DMLC_ROLE": role},
                    cwd=ROOT,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        yield processes
    finally:
        for process in processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.timeout(120)
def test_unmodified_script_ends_with_correct_sums(tmp_path: Path) -> None:
    with started(tmp_path) as processes:
        codes = {name: process.wait(100) for name, process in processes.items()}
    printed = {name: (tmp_path / name).read_text() for name in processes}
    assert set(codes.values()) == {0}, (codes, printed)
    total, squares = expected_checksum()
    for rank in range(WORKERS):
        found = re.search(r"rank (\d) of 2 .* weights (\S+) (\S+)", printed[f"worker-{rank}"])
        assert found is not None, printed
        assert int(found[1]) == rank
        assert float(found[2]) == pytest.approx(total, rel=1e-4)
        assert float(found[3]) == pytest.approx(squares, rel=1e-5)
