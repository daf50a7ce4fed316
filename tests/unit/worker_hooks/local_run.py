"""Small trainings in this process (comm: local), for the tests of this folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dynamix_ps.config.schema import Timeouts
from worker_hooks.joining import Attached, join
from worker_hooks.run import Run
from worker_hooks.session import Session
from worker_hooks.settings import Settings
from worker_hooks.torch.adapter import TorchAdapter

SAMPLES = 50


def settings_for(folder: Path | None = None, **changes: Any) -> Settings:
    values: dict[str, Any] = {
        "comm": "local",
        "mode": "off",
        "sizes": (8,),
        "bounds": None,
        "unit": "samples",
        "seed": 5,
        "window": 3,
        "lr_rule": "none",
        "reference_batch": None,
        "prefetch": 0,
        "bucket_bytes": 4_000_000,
        "checkpoint_every": 0,
        "checkpoint_on_term": True,
        "network": "off",
        "timeouts": Timeouts(),
        "run_dir": folder,
        "run_id": "test",
        "arbitrator": None,
        "resume": None,
        "slowdown": 1.0,
    }
    values |= changes
    values.setdefault("accepted_bounds", values["bounds"] or ())
    return Settings(**values)


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
