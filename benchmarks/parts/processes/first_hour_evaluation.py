"""A training in which worker 0 alone evaluates every 50 iterations, between two batches; see first_hour.py."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import dynamix_ps.torch as dynamix

EPOCHS, EVERY, ROUNDS = 80, 50, 5  # iterations between two evaluations; each goes over the data so many times


def main() -> None:
    images, labels = load_digits(return_X_y=True)
    inputs = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    targets = torch.tensor(labels)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 8 * 8, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run = dynamix.attach(model, optimizer, TensorDataset(inputs, targets))
    for images_now, answers in run.batches(epochs=EPOCHS):
        optimizer.zero_grad()
        run.backward(cross_entropy(model(images_now), answers))
        optimizer.step()
        if run.rank == 0 and run.every(EVERY):
            with torch.no_grad():
                for _ in range(ROUNDS):
                    model(inputs)
    run.close()


if __name__ == "__main__":
    main()
