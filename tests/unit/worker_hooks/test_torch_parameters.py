"""What a worker tells the others of the parameters that it trains."""

from __future__ import annotations

import torch
from torch import nn

from worker_hooks.torch.parameters import TrainedParameters


def test_workers_on_other_kinds_of_devices_train_other_parameters() -> None:
    told = []
    for device in ("cpu", "meta"):
        parameters = TrainedParameters([], [])
        parameters.trained = {"weight": nn.Parameter(torch.zeros(2, 3, device=device))}
        told.append(parameters.described())
    assert told == [{"weight": "(2, 3) float32"}, {"weight": "(2, 3) float32 on meta"}]
