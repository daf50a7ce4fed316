"""A worker of `benchmarks.parts.launch`: `python -m benchmarks.parts.processes.launch_worker WAY FOLDER`.

A worker notes in the folder when its first iteration was over. A worker of the way `light` runs without torch: it
reports its start and its end as a hook does, and trains nothing.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    way, folder = sys.argv[1], Path(sys.argv[2])
    {"dynamix": with_dynamix, "torchrun": with_torchrun, "light": light}[way](folder)


def with_dynamix(folder: Path) -> None:
    """Two iterations."""
    import torch

    import dynamix_ps.torch as dynamix

    model, optimizer, inputs, targets = training()
    run = dynamix.attach(model, optimizer, torch.utils.data.TensorDataset(inputs, targets))
    for number, (some, labels) in enumerate(run.batches(iterations=2)):
        optimizer.zero_grad()
        run.backward(torch.nn.functional.cross_entropy(model(some), labels))
        optimizer.step()
        if number == 0:
            note(folder, run.rank)
    run.close()


def with_torchrun(folder: Path) -> None:
    """One iteration with torch's own data parallelism, over gloo."""
    import torch

    torch.distributed.init_process_group("gloo")
    model, optimizer, inputs, targets = training()
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    loss = torch.nn.functional.cross_entropy(wrapped(inputs[:64]), targets[:64])
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    note(folder, torch.distributed.get_rank())
    wait_for_all(folder, torch.distributed.get_world_size())
    os._exit(0)  # the end of a process group of gloo hangs at times


def light(folder: Path) -> None:
    from dynamix_ps.config import variables
    from dynamix_ps.run_record.json_lines import JsonLines
    from dynamix_ps.run_record.run_folder import RunFolder

    rank = int(os.environ["DMLC_WORKER_ID"])
    lines = JsonLines(RunFolder(Path(os.environ[variables.RUN_DIR])).worker_file(rank))
    start = {"comm": "local", "comm_version": "none", "framework": "none", "batch_size": 64, "iteration": 0}
    lines.write({"kind": "started", "time_s": time.time(), "rank": rank, "pid": os.getpid(), **start})
    note(folder, rank)
    end = {"iterations": 1, "samples": 64, "train_s": 0.1}
    lines.write({"kind": "finished", "time_s": time.time(), "rank": rank, **end})


def training() -> tuple[Any, Any, Any, Any]:
    """Model, optimizer, inputs and targets, the same for all workers."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Linear(100, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, torch.randn(640, 100), torch.randint(0, 10, (640,))


def note(folder: Path, rank: int) -> None:
    (folder / f"rank-{rank}").write_text(repr(time.time()))


def wait_for_all(folder: Path, workers: int) -> None:
    """A worker that ends before the others have made their first step would end them too."""
    while len(list(folder.glob("rank-*"))) < workers:
        time.sleep(0.05)


if __name__ == "__main__":
    main()
