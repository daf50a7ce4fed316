"""Worker 0 writes the data, and the others read it: `before_all`. Each worker leaves a file with what it has seen."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch

import dynamix_ps.torch as dynamix
from tests.cases.harness import data, net
from tests.launching import wait_for


def prepare() -> None:
    """Not before all workers are about to read."""
    workers = int(os.environ.get("DMLC_NUM_WORKER", "1"))
    wait_for(lambda: len(list(Path().glob("here-*"))) == workers, "all workers to come")
    Path("data").write_text("written once")


def main() -> None:
    rank = os.environ.get("DMLC_WORKER_ID", "0")
    Path(f"here-{rank}").touch()
    place = dynamix.before_all(prepare)
    text = Path("data").read_text()
    dynamix.before_all()
    model = net()
    run = dynamix.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), data())
    Path(f"seen-{rank}").write_text(json.dumps([text, place, [run.rank, run.size]]))


if __name__ == "__main__":
    main()
