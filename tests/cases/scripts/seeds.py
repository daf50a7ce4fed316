"""The seed of the data order."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.nn.functional import mse_loss

from tests.cases.harness import data, net, weights


def seed_differs_by_rank(attach: Any) -> Any:
    """Rank 0's is everybody's; every sample is taken once per epoch."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, data(), seed=1234 + int(os.environ.get("DMLC_WORKER_ID", "0")))
    for _, x, y in run.batches(epochs=2):
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        optimizer.step()
    run.close()
    return weights(model)
