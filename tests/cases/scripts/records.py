"""What a run records: the loss of accumulated batches, and named metrics of any batch structure."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import mse_loss
from torch.utils.data import Dataset

from tests.cases.harness import data, net, weights


def _losses(attach: Any, over_batches: int, in_parts: int) -> float:
    """Trains with a rate of 0; returns the true mean loss of this worker's batches times their samples."""
    model, true = net(), 0.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    run = attach(model, optimizer, data(640))
    for number, (_, x, y) in enumerate(run.batches(epochs=1)):
        true += mse_loss(model(x), y).item() * len(x)
        parts = list(zip(x.chunk(in_parts), y.chunk(in_parts), strict=True))
        for part, (a, b) in enumerate(parts):
            loss = mse_loss(model(a), b) / over_batches / in_parts
            if part < in_parts - 1 or (number + 1) % over_batches:
                loss.backward()
            else:
                run.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
    run.close()
    return true


def loss_of_whole_batches(attach: Any) -> float:
    return _losses(attach, over_batches=1, in_parts=1)


def loss_of_parts(attach: Any) -> float:
    return _losses(attach, over_batches=1, in_parts=4)


def loss_over_batches(attach: Any) -> float:
    return _losses(attach, over_batches=2, in_parts=1)


def noise_of_means(attach: Any) -> Any:
    return _trained(attach, mse_loss)


def noise_of_sums(attach: Any) -> Any:
    return _trained(attach, lambda x, y: mse_loss(x, y, reduction="sum") / 4, lr=0.1 * 4 / 32, reduction="sum")


def _trained(attach: Any, loss: Any, lr: float = 0.1, **options: Any) -> Any:
    """Batches of 32 samples in all, so that a sum is 32 times the mean."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    run = attach(model, optimizer, data())
    for _, x, y in run.batches(epochs=4):
        optimizer.zero_grad()
        run.backward(loss(model(x), y), **options)
        optimizer.step()
    run.close()
    return weights(model)


class _Rows(Dataset[Any]):
    """Items as a data set of another library gives them."""

    def __init__(self, form: str) -> None:
        self.form = form

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> Any:
        x, y = torch.full((6,), index / 100), float(index)
        return {
            "tuple": (x, y),
            "dict": {"x": x, "y": y},
            "nested": {"inputs": (x, {"name": f"row {index}"}), "y": y},
            "numpy": (x.numpy(), y),
        }[self.form]


def metrics_of_any_batch(attach: Any) -> Any:
    """Mean absolute error of a model that says 0: 49.5, on every form of batch."""
    model, found = torch.nn.Linear(6, 1), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    run = attach(model, optimizer, data())
    for batch in run.batches(iterations=2):
        optimizer.zero_grad()
        run.backward(mse_loss(model(batch[1]), batch[2]))
        optimizer.step()

    def of_pair(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"mae": y.abs().sum()}

    def of_nested(inputs: Any, y: torch.Tensor) -> dict[str, torch.Tensor]:
        assert inputs[1]["name"][0].startswith("row ")
        return {"mae": y.abs().sum()}

    for form in ("tuple", "dict", "nested", "numpy"):
        score = of_nested if form == "nested" else of_pair
        found.append(run.evaluate(_Rows(form), score, lower_is_better="mae")["mae"])
    run.close()
    return found
