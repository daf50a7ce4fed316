"""A classifier of table rows, with torch. A number marks each line that DYNAMIX needs.

    dynamix launch -c examples/cluster.yaml -- python examples/torch_tabular.py

Started with plain `python`, it is ordinary training in one process. The table is the breast cancer data set of
Wisconsin, which scikit-learn carries.
"""

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import TensorDataset

import dynamix_ps.torch as dynamix  # 1

features, benign = load_breast_cancer(return_X_y=True)
train_x, test_x, train_y, test_y = train_test_split(features, benign, test_size=0.25, random_state=0, stratify=benign)
scaler = StandardScaler().fit(train_x)


def tensors(rows, answers) -> TensorDataset:
    return TensorDataset(torch.tensor(scaler.transform(rows)).float(), torch.tensor(answers).float())


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

run = dynamix.attach(model, optimizer, tensors(train_x, train_y))  # 2


def correct(logits: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
    return ((logits > 0) == (answers > 0.5)).sum()


def score(rows: torch.Tensor, answers: torch.Tensor) -> dict[str, torch.Tensor]:
    """Sums over a batch: correct predictions, and losses."""
    logits = model(rows)
    loss = binary_cross_entropy_with_logits(logits, answers, reduction="sum")
    return {"accuracy": correct(logits, answers), "loss": loss}


for rows, answers in run.batches(epochs=30):  # 3, in place of the epoch loop and the DataLoader
    optimizer.zero_grad()
    logits = model(rows)
    run.backward(binary_cross_entropy_with_logits(logits, answers), correct=correct(logits, answers))  # 4
    optimizer.step()

result = run.evaluate(tensors(test_x, test_y), score)  # 5, every worker takes a part of the test set
if run.rank == 0:
    print(f"test accuracy {result['accuracy']:.1%}, test loss {result['loss']:.3f}")
run.close()  # 6
