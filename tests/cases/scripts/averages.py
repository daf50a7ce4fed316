"""Moving averages of the weights, while batch sizes change."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss

from tests.cases.harness import data, weights

DECAY = 0.9
SAVED_AFTER = 6  # iterations


def of_changing_sizes(attach: Any) -> Any:
    """Weights and averages after each iteration, with buffers; then the error of the averages on all data."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    run, found = attach(model, optimizer, data(), ema_decay=DECAY), []
    for _, x, y in run.batches(epochs=2):
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        optimizer.step()
        own = weights(model)
        with run.averaged():
            found.append({"weights": own, "averages": weights(model)})
        if run.iteration == SAVED_AFTER:
            run.save("x.pt")
    error = run.evaluate(data(), lambda _, x, y: mse_loss(model(x), y, reduction="sum"), averaged=True)
    run.close()
    return {"found": found, "error": error}
