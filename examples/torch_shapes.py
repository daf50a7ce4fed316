"""A convolutional network that tells circles, squares and triangles apart, with torch. It draws its data itself.

A number marks each of the three lines that DYNAMIX needs. `dynamix demo` runs this script.

    dynamix launch -c examples/cluster.yaml -- python examples/torch_shapes.py
"""

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import dynamix_ps.torch as dynamix  # 1

SIDE, SHAPES = 28, ("circle", "square", "triangle")


def drawn(count: int, seed: int) -> TensorDataset:
    """Images of one shape each, which differ in place, size, brightness and noise."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(len(SHAPES), size=count)
    radius = rng.uniform(4, 9, count)[:, None, None]
    middle = rng.uniform(10, SIDE - 10, (2, count))[:, :, None, None]
    y, x = np.mgrid[:SIDE, :SIDE][:, None] - middle
    circle = x**2 + y**2 < radius**2
    square = np.maximum(abs(x), abs(y)) < 0.9 * radius
    triangle = (y < 0.6 * radius) & (y > 2 * abs(x) - radius)
    shape = np.choose(kind[:, None, None], (circle, square, triangle))
    images = rng.uniform(0.4, 1, (count, 1, 1)) * shape + rng.normal(0, 0.4, shape.shape)
    return TensorDataset(torch.tensor(images[:, None], dtype=torch.float32), torch.tensor(kind))


torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 7 * 7, len(SHAPES)),
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loader = DataLoader(drawn(6000, seed=1), batch_size=64, shuffle=True)
run = dynamix.attach(model, optimizer, loader)  # 2

for epoch in range(8):
    for images, kinds in run.loader:  # 3, in place of loader
        optimizer.zero_grad()
        loss = cross_entropy(model(images), kinds)
        loss.backward()
        optimizer.step()
    if run.rank == 0:
        print(f"epoch {epoch + 1}: loss {loss:.3f}, batch sizes {run.planned_sizes}", flush=True)


def score(images: torch.Tensor, kinds: torch.Tensor) -> dict[str, torch.Tensor]:
    """The correct predictions of a batch."""
    return {"accuracy": (model(images).argmax(1) == kinds).sum()}


result = run.evaluate(drawn(1000, seed=2), score)
if run.rank == 0:
    print(f"test accuracy {result['accuracy']:.1%}")
run.close()
