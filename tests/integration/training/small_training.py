"""A small network on made-up data, equal in every framework; the workers of test_invariants.py train it."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

SAMPLES = 157
LEARNING_RATE, MOMENTUM = 0.0625, 0.875  # exact in float32, which MXNet keeps them in


def make_data() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(7)
    return generator.standard_normal((SAMPLES, 5)), generator.standard_normal((SAMPLES, 2))


def make_weights(seed: int) -> list[np.ndarray]:
    """Of 5 inputs, 7 hidden units with tanh, 2 outputs: weights and biases, layer by layer."""
    generator = np.random.default_rng(seed)
    return [generator.uniform(-0.5, 0.5, shape) for shape in ((7, 5), (7,), (2, 7), (2,))]


class TorchTraining:
    """The usual loop's parts; `taken` gets the number of every sample that is asked for."""

    def __init__(self, seed: int, taken: list[int]) -> None:
        import torch

        import dynamix_ps.torch as dynamix

        class Recorded(torch.utils.data.Dataset):
            inputs, targets = map(torch.from_numpy, make_data())

            def __len__(self) -> int:
                return SAMPLES

            def __getitem__(self, index: int) -> Any:
                taken.append(index)
                return self.inputs[index], self.targets[index]

        self.model = self.make_model(seed)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
        self.run = dynamix.attach(self.model, self.optimizer, Recorded())

    @staticmethod
    def make_model(seed: int) -> Any:
        import torch
        from torch import nn

        model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)).double()
        with torch.no_grad():
            for parameter, values in zip(model.parameters(), make_weights(seed), strict=True):
                parameter.copy_(torch.from_numpy(values))
        return model

    def step(self, inputs: Any, targets: Any) -> None:
        import torch

        self.optimizer.zero_grad()
        self.run.backward(torch.nn.functional.mse_loss(self.model(inputs), targets))
        self.optimizer.step()

    def weights(self) -> list[float]:
        return [value for parameter in self.model.parameters() for value in parameter.detach().flatten().tolist()]


class MXNetTraining:
    """The same in MXNet."""

    def __init__(self, seed: int, taken: list[int]) -> None:
        import dynamix_ps.mxnet as dynamix  # before mxnet itself

        # isort: split
        import mxnet as mx
        from mxnet import gluon

        class Recorded(gluon.data.Dataset):
            inputs, targets = (mx.nd.array(column, dtype=np.float64) for column in make_data())

            def __len__(self) -> int:
                return SAMPLES

            def __getitem__(self, index: int) -> Any:
                taken.append(index)
                return self.inputs[index], self.targets[index]

        self.net = gluon.nn.HybridSequential()
        self.net.add(
            gluon.nn.Dense(7, activation="tanh", in_units=5, dtype=np.float64),
            gluon.nn.Dense(2, in_units=7, dtype=np.float64),
        )
        self.net.initialize()
        for parameter, values in zip(self._parameters(), make_weights(seed), strict=True):
            parameter.set_data(mx.nd.array(values, dtype=np.float64))
        self.trainer = gluon.Trainer(
            self.net.collect_params(), "sgd", {"learning_rate": LEARNING_RATE, "momentum": MOMENTUM}
        )
        self.run = dynamix.attach(self.net, self.trainer, Recorded())

    def _parameters(self) -> list[Any]:
        return [parameter for layer in self.net for parameter in (layer.weight, layer.bias)]

    def step(self, inputs: Any, targets: Any) -> None:
        from mxnet import autograd

        with autograd.record():
            loss = ((self.net(inputs) - targets) ** 2).mean()
        self.run.backward(loss)
        self.trainer.step(1)

    def weights(self) -> list[float]:
        return [value for parameter in self._parameters() for value in parameter.data().asnumpy().ravel().tolist()]


TRAININGS: dict[str, Any] = {"torch": TorchTraining, "mxnet": MXNetTraining}
NEEDS_MXNET = pytest.mark.skipif(importlib.util.find_spec("mxnet") is None, reason="MXNet was left out")
