"""What a worker tells the others of the parameters that it trains."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from worker_hooks.torch.parameters import TorchParameters, total_and_norm


def test_workers_on_other_kinds_of_devices_train_other_parameters() -> None:
    told = []
    for device in ("cpu", "meta"):
        parameters = TorchParameters([], [])
        parameters.trained = {"weight": nn.Parameter(torch.zeros(2, 3, device=device))}
        told.append(parameters.described())
    assert told == [{"weight": "(2, 3) float32"}, {"weight": "(2, 3) float32 on meta"}]


FLOAT8 = [getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu") if hasattr(torch, name)]


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.uint8, torch.float16, torch.complex64, *FLOAT8])
def test_weights_of_every_type_are_sampled(dtype: torch.dtype) -> None:
    values = torch.tensor([1.0, 2.0, 4.0, 2.0])
    assert total_and_norm(values.to(dtype), 0) == (9.0, 5.0)
    assert total_and_norm(values.to(dtype)[:1].reshape(()), 0) == (1.0, 1.0)
    assert total_and_norm(values.to(dtype)[:0], 0) == (0.0, 0.0)


def test_both_parts_of_complex_weights_and_all_booleans_are_sampled() -> None:
    assert total_and_norm(torch.tensor([3 + 4j]), 0) == (7.0, 5.0)
    assert total_and_norm(torch.tensor([True, False, True]), 0) == (2.0, pytest.approx(math.sqrt(2)))
