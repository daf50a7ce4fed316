"""A training of seconds whose result is known: what workers under the hook must come to, whatever happens around them.

    python -m benchmarks.workloads.tiny_regression --iterations 1500 --out FOLDER

Every worker writes its weights to `weights-<rank>.npy` in the folder. `trained_alone` computes the same in one process.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from worker_hooks.sampling.sampler import Cursor, GlobalSampler

SAMPLES, INPUTS, HIDDEN = 4000, 6, 16
_LEARNING_RATE, _MOMENTUM = 0.02, 0.875


def make_data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = np.random.default_rng(7)
    inputs = torch.from_numpy(generator.standard_normal((SAMPLES, INPUTS)))
    return inputs, torch.sin(inputs.sum(1, keepdim=True))


def make_training() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1)).double()
    return model, torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE, momentum=_MOMENTUM)


def weights_of(model: nn.Module) -> NDArray[np.float64]:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).numpy()


def trained_alone(iterations: int, plans: Mapping[int, Sequence[int]], seed: int) -> NDArray[np.float64]:
    """The weights after so many iterations in one process.

    Args:
        plans: the batch size of each worker, by the first iteration in which they are in force.
        seed: of the order of the samples, as in the cluster file.
    """
    inputs, targets = make_data()
    model, optimizer = make_training()
    sampler, cursor = GlobalSampler(SAMPLES, seed), Cursor()
    sizes: Sequence[int] = ()
    for iteration in range(iterations):
        sizes = plans.get(iteration, sizes)
        step = sampler.plan_step(cursor, sizes)
        batch = np.concatenate([sampler.indices(step, rank) for rank in range(len(sizes))])
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs[batch]), targets[batch]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        cursor = step.next
    return weights_of(model)


def main() -> None:
    import dynamix_ps.torch as dynamix

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    model, optimizer = make_training()
    run = dynamix.attach(model, optimizer, torch.utils.data.TensorDataset(*make_data()))
    for inputs, targets in run.batches(iterations=args.iterations):
        optimizer.zero_grad()
        run.backward(nn.functional.mse_loss(model(inputs), targets))
        optimizer.step()
    np.save(args.out / f"weights-{run.rank}.npy", weights_of(model))


if __name__ == "__main__":
    main()
