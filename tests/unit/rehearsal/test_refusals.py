"""What a rehearsal cannot compute is refused by name, before a weight changes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dynamix_ps.numpy_names  # noqa: F401  # before mxnet
import dynamix_ps.torch as dynamix
from dynamix_ps.errors import TrainingError
from dynamix_ps.integrations.workers import WorkerGroup
from tests.unit.rehearsal.conftest import Rehearse
from tests.unit.rehearsal.test_weights import LR, WithLoss, make_data, plain_model


class Stream(torch.utils.data.IterableDataset[torch.Tensor]):
    def __iter__(self) -> Any:
        return iter(torch.zeros(50, 6))


class Mean(nn.Module):
    """Returns one row for the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = plain_model()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.inner(inputs).mean(0, keepdim=True)


class Sum(WithLoss):
    """Returns a loss that is a sum."""

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return cross_entropy(self.inner(inputs), targets, reduction="sum")


def past_its_model(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(model[2](model[1](model[0](inputs))), targets)


def sample_by_sample(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(torch.stack([model(one) for one in inputs]), targets)


def mean_of_sum(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return model(inputs, targets) / len(inputs)


def one_row(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(model(inputs), targets[:1])


@pytest.mark.parametrize(
    ("make", "loss_of", "text"),
    [
        (plain_model, past_its_model, "has not called a model that it gave to attach"),
        (plain_model, sample_by_sample, "call the model with the whole batch in the first dimension"),
        (Sum, mean_of_sum, "Sum returned a number that is a sum over the samples"),
        (Mean, one_row, "Mean returned an output of shape \\(1, 3\\) for 8 samples"),
    ],
)
def test_scripts_whose_batches_cannot_be_divided(
    make: Callable[[], nn.Module], loss_of: Callable[..., torch.Tensor], text: str, rehearse: Rehearse
):
    rehearse()
    model = make()
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    run = dynamix.attach(model, optimizer, make_data())
    with pytest.raises(TrainingError, match=text):
        for inputs, targets in run.batches(epochs=1):
            optimizer.zero_grad()
            run.backward(loss_of(model, inputs, targets))
            optimizer.step()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_weights_of_losses_that_the_model_returns(rehearse: Rehearse):
    rehearse()
    model = WithLoss()
    run = dynamix.attach(model, torch.optim.SGD(model.parameters(), lr=LR), make_data())
    with pytest.raises(TrainingError, match="what the part of each worker counts with is not known"):
        for inputs, targets in run.batches(epochs=1):
            run.backward(model(inputs, targets)["loss"], weight=int((targets != 1).sum()))


@pytest.mark.parametrize("make", [Stream, lambda: dynamix.shards(["a", "b"], lambda name: torch.zeros(9, 6))])
def test_streams(make: Callable[[], Any], rehearse: Rehearse):
    rehearse()
    model = plain_model()
    with pytest.raises(TrainingError, match="each of which would read its own part of a stream"):
        dynamix.attach(model, torch.optim.SGD(model.parameters(), lr=LR), make())


def test_frameworks(rehearse: Rehearse):
    rehearse()
    with pytest.raises(TrainingError, match="Lightning, accelerate, or the Trainer of transformers"):
        WorkerGroup()


def test_mxnet(rehearse: Rehearse):
    mx = pytest.importorskip("mxnet", reason="MXNet was left out of this environment")
    from dynamix_ps.mxnet import attach

    rehearse()
    net = mx.gluon.nn.Dense(2)
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd")
    data = mx.gluon.data.ArrayDataset(np.zeros((50, 4), dtype=np.float32), np.zeros(50, dtype=np.int32))
    with pytest.raises(TrainingError, match="not possible in mxnet: `dynamix rehearse` needs a script in torch"):
        attach(net, trainer, data)
