"""Jobs that other launchers than ours start, and what holds for all of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dynamix_ps.launch.cleanup.release import processes_of
from tests.launching import assert_nothing_left, environment, run_id_in, wait_for
from worker_hooks.process.launched import LAUNCHER_VARIABLES

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
# The second worker needs ten times as long for a sample, so that plans differ from the first sizes. Training ends with
# the first pass that begins with a plan.
TRAINING = """
import os, sys, time, torch
import dynamix_ps.torch as dynamix

{before}
torch.manual_seed(0)
inputs = torch.randn(512, 6)
data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
model = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
run = dynamix.attach(model, optimizer, loader{options})
rank = int(os.environ["DMLC_WORKER_ID"])
first, changed = run.planned_sizes, False
for epoch in run.epochs(200):
    for x, y in run.batches():
        time.sleep(len(x) * (1e-3 if rank else 1e-4))
        optimizer.zero_grad()
        run.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
        {inside}
    if changed:
        break
    changed = run.planned_sizes != first
{after}
"""

# A line of a worker in iteration 5, written at once: both write into one stream.
TRAINS = "print(f'trains {rank} {os.getpid()}\\n', end='', flush=True) if run.iteration == 5 else None"


def training(folder: Path, options: str = "", before: str = "", after: str = "", inside: str = "") -> Path:
    """A script. `options`: further arguments of `attach`; the rest are lines at its places."""
    file = folder / "train.py"
    file.write_text(TRAINING.format(options=options, before=before, after=after, inside=inside))
    return file


def plain_environment(**changes: str) -> dict[str, str]:
    """Without the variables of any launcher."""
    names = {"MASTER_ADDR", "MASTER_PORT", *LAUNCHER_VARIABLES}
    return {name: value for name, value in environment().items() if name not in names} | {
        "OMP_NUM_THREADS": "1",
        "DYNAMIX_CACHE": os.environ.get("DYNAMIX_CACHE", ""),
        **changes,
    }


@contextmanager
def started(
    commands: Sequence[Sequence[str]], folder: Path, environs: Sequence[Mapping[str, str]] = ()
) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes in sessions of their own, whose output comes in one stream each. None of them outlives the test."""
    out = subprocess.PIPE
    processes = [
        subprocess.Popen(
            command,
            cwd=folder,
            env=plain_environment(**environ),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        for command, environ in zip(commands, environs or [{}] * len(commands), strict=True)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()


def job(
    commands: Sequence[Sequence[str]],
    folder: Path,
    environs: Sequence[Mapping[str, str]] = (),
    limit_s: float = 80.0,
) -> list[tuple[int, str]]:
    """Exit code and output of each of these processes."""
    with started(commands, folder, environs) as processes:
        outputs = [process.communicate(timeout=limit_s)[0] for process in processes]
        return [(process.returncode, output) for process, output in zip(processes, outputs, strict=True)]


def run_of(folder: Path) -> Path:
    """The folder of the newest run that was begun in a folder, once its records are complete and nothing is left."""
    newest = (folder / "runs" / "latest").resolve()
    wait_for((newest / "summary.json").is_file, f"a summary in {newest}")
    run_id = run_id_in(newest.name)
    wait_for(lambda: not list(processes_of(run_id)), "the companion to end")
    assert_nothing_left(run_id)
    return newest


def summary_of(run: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return summary


def check_adapted(run: Path, workers: int = 2, samples: int = 512) -> None:
    """Whole passes of this many samples were trained, and plans have moved work away from the slow worker."""
    summary = summary_of(run)
    assert summary["exit_code"] == 0, summary["reason"]
    assert (summary["workers"], summary["samples"] % samples) == (workers, 0)
    assert summary["plans_applied"] >= 1
    sizes = summary["batch_sizes_end"]
    assert sizes[0] > sizes[1], sizes
