"""`lr: guard` over real processes: torch on BytePS and on the ring, MXNet on BytePS.

Weights come back where the loss of one worker is not finite: all workers have the same bits, and come to what one
process comes to that does the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integration.training.small_training import LEARNING_RATE, MOMENTUM, SAMPLES, TorchTraining, make_data
from tests.integration.training.test_invariants import PLANES, WORKERS, concatenated, run_workers

SIZES = {0: (8, 8, 8), 1: (3, 2, 7), 2: (16, 5, 2)}  # that of plan 1 is below the first global batch
ITERATIONS, BROKEN, RANK = 60, (30, 50), 1


def train_alone(framework: str, batches: list[list[int]]) -> list[float]:
    """One process on the concatenated batches, with the update of the framework's SGD written out."""
    inputs, targets = map(torch.from_numpy, make_data())
    model = TorchTraining.make_model(seed=0)
    parameters = list(model.parameters())
    momenta = [torch.zeros_like(p) for p in parameters]
    copied = [[one.detach().clone() for one in state] for state in (parameters, momenta)]
    guard = 1.0
    for iteration, batch in enumerate(batches):
        if iteration in BROKEN:
            guard /= 2
            with torch.no_grad():
                for state, back in zip((parameters, momenta), copied, strict=True):
                    for one, value in zip(state, back, strict=True):
                        one.copy_(value)
            continue
        rate = LEARNING_RATE * guard
        gradients = torch.autograd.grad(torch.nn.functional.mse_loss(model(inputs[batch]), targets[batch]), parameters)
        with torch.no_grad():
            for parameter, momentum, gradient in zip(parameters, momenta, gradients, strict=True):
                if framework == "torch":
                    parameter.sub_(rate * momentum.mul_(MOMENTUM).add_(gradient))
                else:
                    parameter.add_(momentum.mul_(MOMENTUM).sub_(rate * gradient))
    return [value for p in parameters for value in p.detach().flatten().tolist()]


@pytest.mark.timeout(150)
@pytest.mark.parametrize("plane", PLANES[1:])
def test_all_workers_take_weights_back_at_one_iteration(tmp_path: Path, plane: tuple[str, str, int]) -> None:
    framework, comm, prefetch = plane
    plans = {version: [version, SIZES[version]] for version in SIZES}
    deliveries: list[dict[int, Any]] = [
        {5: plans[1], 20: plans[2]},
        {9: plans[1], 20: plans[2]},
        {5: plans[1], 25: plans[2]},
    ]
    broken = [[RANK, iteration] for iteration in BROKEN]
    job = {"deliveries": deliveries, "iterations": ITERATIONS, "broken": broken}
    results = run_workers(tmp_path, framework, job, SIZES[0], comm=comm, prefetch=prefetch, lr="guard")
    history = results[0]["history"]
    assert [history.index(version) for version in (1, 2)] == [10 + prefetch, 26 + prefetch]
    for result in results:
        assert result["history"] == history
        assert result["guard"] == 0.5 ** len(BROKEN)
        assert result["weights"] == results[0]["weights"], "not the same bits on all workers"
    batches = concatenated(results, SIZES)
    order = [index for batch in batches for index in batch]
    whole = len(order) // SAMPLES * SAMPLES
    assert all(sorted(order[i : i + SAMPLES]) == list(range(SAMPLES)) for i in range(0, whole, SAMPLES)), (
        "samples go on"
    )
    alone = train_alone(framework, batches)
    assert results[0]["weights"] == pytest.approx(alone, rel=1e-6, abs=1e-9)
    assert len(results) == WORKERS
