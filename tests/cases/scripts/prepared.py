"""Worker 0 writes the data, and the others read it: `before_all`. Each worker leaves a file with what it has seen."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch

import dynamix_ps.torch as dynamix
from tests.cases.harness import data, net
from tests.launching import wait_for

TOO_EARLY_S = 1.0


def prepare() -> None:
    """Give all workers the time to read too early; one that does so leaves a mark."""
    workers = int(os.environ.get("DMLC_NUM_WORKER", "1"))
    wait_for(lambda: len(list(Path().glob("here-*"))) == workers, "all workers to come")
    until_s = time.monotonic() + TOO_EARLY_S
    while time.monotonic() < until_s and not list(Path().glob("on-*")):
        time.sleep(0.01)
    Path("data").write_text("too late" if list(Path().glob("on-*")) else "written once")


def main() -> None:
    rank = os.environ.get("DMLC_WORKER_ID", "0")
    Path(f"here-{rank}").touch()
    place = dynamix.before_all(prepare)
    Path(f"on-{rank}").touch()
    wait_for(Path("data").exists, "the data")
    text = Path("data").read_text()
    dynamix.before_all()
    model = net()
    run = dynamix.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), data())
    Path(f"seen-{rank}").write_text(json.dumps([text, place, [run.rank, run.size]]))


if __name__ == "__main__":
    main()
