"""A worker whose script starts processes that attach too. Worker 1 writes what came of each into a file."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import dynamix_ps.torch as dynamix
from dynamix_ps.errors import DynamixError

PREFIXES = ("DMLC_", "BYTEPS_", "DYNAMIX_")


def attached() -> dynamix.Run:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(96, 3), torch.randn(96, 1))
    return dynamix.attach(model, optimizer, data)


def train(run: dynamix.Run, within: Callable[[], object] = lambda: None) -> list[float]:
    for x, y in run.batches(iterations=5):
        if run.iteration == 2:
            within()
        run.optimizers[0].zero_grad()
        run.backward(nn.functional.mse_loss(run.models[0](x), y))
        run.optimizers[0].step()
    return [float(value) for value in run.models[0].weight.detach().flatten()]


def started(environ: dict[str, str]) -> str:
    """The last line of a child: a new Python that runs this script."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.cases.scripts.children", "child"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return f"{done.returncode} {(done.stdout + done.stderr).splitlines()[-1]}"


def tries(told: str) -> None:
    """What a child of multiprocessing does."""
    try:
        train(attached())
        Path(told).write_text("trained")
    except DynamixError as error:
        Path(told).write_text(str(error))


def by_multiprocessing(method: str) -> str:
    told = Path(f"told-{method}")
    child = multiprocessing.get_context(method).Process(target=tries, args=(str(told),))
    child.start()
    child.join(60)
    return told.read_text()


def forked(body: Callable[[], object]) -> str:
    told = Path("told-os-fork")
    if child := os.fork():
        os.waitpid(child, 0)
        return told.read_text()
    try:
        body()
    except DynamixError as error:
        told.write_text(str(error))
    finally:
        os._exit(0)


def main(arguments: list[str]) -> None:
    if arguments == ["child"]:
        print("trained", len(train(attached())))
        return
    if arguments == ["wrapper"]:
        sys.exit([started(dict(os.environ)) for _ in range(2)][1])
    found: dict[str, str] = {}

    def start_all() -> None:
        if run.rank == 0:
            return
        found["subprocess"] = started(dict(os.environ))
        alone = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}
        found["alone"] = started(alone)
        found["spawn"], found["fork"] = by_multiprocessing("spawn"), by_multiprocessing("fork")
        found["os.fork"] = forked(attached)
        found["evaluates"] = forked(lambda: run.evaluate(list(range(8)), lambda batch: {"one": 1.0}))

    run = attached()
    weights = train(run, start_all)
    Path(f"result-{run.rank}.json").write_text(json.dumps({"found": found, "weights": weights, "pid": os.getpid()}))


if __name__ == "__main__":
    main(sys.argv[1:])
