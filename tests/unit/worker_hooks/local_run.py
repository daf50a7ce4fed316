"""Small trainings in this process (comm: local), for the tests of this folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dynamix_ps.config.schema import (
    MAX_GLOBAL_BATCH,
    BatchBounds,
    Cluster,
    Config,
    Elastic,
    Metrics,
    PolicySection,
    Stigmergy,
    WorkerSection,
)
from worker_hooks.joining import Attached, join
from worker_hooks.run import Run
from worker_hooks.session import Session
from worker_hooks.settings import Settings
from worker_hooks.torch.adapter import TorchAdapter

SAMPLES = 50
_OF_PROCESS = ("run_id", "arbitrator", "resume", "slowdown", "rehearsal")
_OF_BATCH = ("unit", "micro_batches")
_OF_ELASTIC = ("keep", "min_workers")


def settings_for(folder: Path | None = None, **changes: Any) -> Settings:
    """`changes`: of the process (`resume`, `run_id` and so on), of workers, and keys of the cluster file."""
    process = {name: changes.pop(name) for name in _OF_PROCESS if name in changes}
    return Settings(config_for(**changes), run_dir=folder, **{"run_id": "test", **process})


def config_for(
    sizes: tuple[int, ...] | None = (8,),
    bounds: tuple[tuple[int, int], ...] | None = None,
    at_once: tuple[int | None, ...] = (),
    reference_batch: int | None = None,
    own_sizes: Stigmergy | None = None,
    **keys: Any,
) -> Config:
    """A cluster file of workers with these first sizes; None: there is no such file."""
    sections: dict[str, Any] = {"metrics": Metrics(network="off")}
    if own_sizes is not None:
        sections["policy"] = PolicySection(name="stigmergy", stigmergy=own_sizes)
    batch = {key: keys.pop(key) for key in _OF_BATCH if key in keys}
    elastic = {key: keys.pop(key) for key in _OF_ELASTIC if key in keys}
    if reference_batch is not None:  # sizes by hand, which differ from those that the learning rate is for
        sections["policy"] = PolicySection(name="static", sizes=sizes)
        first: tuple[int, ...] = (reference_batch,)
    else:
        first = sizes or ()
    limits = bounds or ((1, MAX_GLOBAL_BATCH),) * len(first)
    workers = [
        WorkerSection(batch=size or 1, later=not size, min=low, max=high, at_once=most)
        for size, (low, high), most in zip(first, limits, at_once or (None,) * len(first), strict=True)
    ]
    values = {"comm": "local", "mode": "off", "seed": 5, "window": 3, **keys}
    cluster = Cluster.model_construct(workers=tuple(workers))
    return Config(cluster=cluster, batch=BatchBounds(**batch), elastic=Elastic(**elastic), **sections, **values)


def make_data() -> torch.utils.data.TensorDataset:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 4, generator=generator)
    return torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long())


def open_run(
    models: list[nn.Module],
    optimizers: list[torch.optim.Optimizer],
    data: Any,
    session: Session,
    ema_decay: float | None = None,
    **given: Any,
) -> Run:
    """A training of these."""
    return join(TorchAdapter(models, optimizers, ema_decay), data, session, Attached(**given))


def make_run(folder: Path | None = None, **changes: Any) -> Run:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.0), nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if folder is not None:
        (folder / "workers").mkdir(exist_ok=True)
    return open_run([model], [optimizer], make_data(), Session(settings_for(folder, **changes), "torch"))


def train(run: Run, **limits: int) -> list[torch.Tensor]:
    """The usual loop; returns the inputs of every batch."""
    seen = []
    for inputs, targets in run.batches(**limits):
        seen.append(inputs)
        run.optimizers[0].zero_grad()
        logits = run.models[0](inputs)
        run.backward(nn.functional.cross_entropy(logits, targets), correct=(logits.argmax(1) == targets).sum())
        run.optimizers[0].step()
    return seen


def weights(run: Run) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in run.models[0].parameters()])


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "workers" / "worker-0.jsonl").read_text().splitlines()]
