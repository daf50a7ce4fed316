"""A worker of `benchmarks.parts.under_torchrun.beside_ddp`, which notes in FOLDER when each iteration was over.

    torchrun ... -m benchmarks.parts.processes.ddp_worker WAY FOLDER

Both ways train the demo's CNN with the same batch sizes over gloo; `dynamix` has the hook, and `ddp` torch's
DistributedDataParallel.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from benchmarks.workloads.models import make_model

BATCH, PASSES, SAMPLES = 128, 3, 25_600


def main() -> None:
    way, folder = sys.argv[1], Path(sys.argv[2])
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(SAMPLES, 1, 28, 28), torch.randint(0, 10, (SAMPLES,)))
    model = make_model("cnn", (1, 28, 28), 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trained, batches = {"dynamix": with_dynamix, "ddp": with_ddp}[way](model, optimizer, data)
    ends_s = []
    for _ in range(PASSES):
        for images, kinds in batches:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(trained(images), kinds).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            ends_s.append(time.time())
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(ends_s))
    if way == "ddp":
        torch.distributed.barrier()
        os._exit(0)  # the end of a process group of gloo hangs at times


def with_dynamix(model: Any, optimizer: Any, data: Any) -> tuple[Any, Iterable[Any]]:
    """The model to call, and its batches."""
    import dynamix_ps.torch as dynamix

    loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    run = dynamix.attach(model, optimizer, loader, policy="static")
    return model, run.loader


def with_ddp(model: Any, optimizer: Any, data: Any) -> tuple[Any, Iterable[Any]]:
    torch.distributed.init_process_group("gloo")
    loader: Iterable[Any] = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data))
    return torch.nn.parallel.DistributedDataParallel(model), loader


if __name__ == "__main__":
    main()
