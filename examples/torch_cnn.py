"""A convolutional network on handwritten digits, with torch. A number marks each line that DYNAMIX needs.

    dynamix launch -c examples/cluster.yaml -- python examples/torch_cnn.py

Started with plain `python`, it is ordinary training in one process.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import dynamix_ps.torch as dynamix  # 1

images, labels = load_digits(return_X_y=True)
inputs = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
targets = torch.tensor(labels)
train_set = TensorDataset(inputs[:1500], targets[:1500])
test_set = TensorDataset(inputs[1500:], targets[1500:])

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 4 * 4, 10),
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

run = dynamix.attach(model, optimizer, train_set)  # 2


def score(inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
    """Sums over a batch: correct predictions, and losses."""
    logits = model(inputs)
    loss = cross_entropy(logits, targets, reduction="sum")
    return {"accuracy": (logits.argmax(1) == targets).sum(), "loss": loss}


for inputs, targets in run.batches(epochs=8):  # 3, in place of the epoch loop and the DataLoader
    optimizer.zero_grad()
    logits = model(inputs)
    loss = cross_entropy(logits, targets)
    run.backward(loss, correct=(logits.argmax(1) == targets).sum())  # 4, in place of loss.backward()
    optimizer.step()

result = run.evaluate(test_set, score)  # 5, every worker takes a part of the test set
if run.rank == 0:
    print(f"test accuracy {result['accuracy']:.1%}, test loss {result['loss']:.3f}")
run.close()  # 6
