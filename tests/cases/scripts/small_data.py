"""64 samples for workers that may have up to 256 each. The argument: how many plans have to be applied."""

from __future__ import annotations

import sys

import torch

import dynamix_ps.torch as dynamix

ITERATIONS = 400  # at least; a job may be faster than its first plan


def main(plans: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
    run = dynamix.attach(model, optimizer, data)
    for inputs, targets in run.batches(iterations=100 * ITERATIONS if plans else ITERATIONS):
        optimizer.zero_grad()
        run.backward(torch.nn.functional.cross_entropy(model(inputs), targets))
        optimizer.step()
        if run.every(ITERATIONS // 4):
            run.evaluate(data, lambda inputs, targets: {"loss": float(model(inputs).square().sum())})
        if plans and run.iteration >= ITERATIONS and run.training.plans.applied >= plans:
            break
    run.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
