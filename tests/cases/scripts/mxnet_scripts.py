"""The same in MXNet. Every case runs twice in one worker: with the hook, then plain on the batches of all workers."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import dynamix_ps.mxnet as dynamix

# isort: split
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from tests.integration.training.small_training import SAMPLES, make_data, make_weights

Attach = Callable[..., Any]


class PlainRun:
    """What a case uses of a run, in one process."""

    def __init__(self, batches: list[list[int]]) -> None:
        self._batches = batches

    def batches(self, epochs: int) -> Iterator[Any]:
        columns = columns_of_data()
        for rows in self._batches:
            yield [column[rows] for column in columns]

    def backward(self, loss: Any, weight: Any = None, reduction: str = "mean") -> None:
        loss.backward()

    def close(self) -> None:
        pass


def columns_of_data() -> list[Any]:
    return [mx.nd.array(column, dtype=np.float64) for column in make_data()]


def net() -> Any:
    layers = gluon.nn.HybridSequential()
    layers.add(gluon.nn.Dense(7, activation="tanh", in_units=5, dtype=np.float64))
    layers.add(gluon.nn.Dense(2, in_units=7, dtype=np.float64))
    layers.initialize()
    for parameter, values in zip(parameters_of(layers), make_weights(seed=1), strict=True):
        parameter.set_data(mx.nd.array(values, dtype=np.float64))
    return layers


def parameters_of(layers: Any) -> list[Any]:
    return [parameter for layer in layers for parameter in (layer.weight, layer.bias)]


def weights(layers: Any) -> list[float]:
    return [value for one in parameters_of(layers) for value in one.data().asnumpy().ravel().tolist()]


def trained(attach: Attach, in_loop: Callable[..., None], optimizer: str = "sgd", **options: float) -> list[float]:
    """Two epochs of the usual loop; `in_loop(number, layers, trainer, run)` comes between backward and step."""
    layers = net()
    trainer = gluon.Trainer(layers.collect_params(), optimizer, {"learning_rate": 0.05, **options})
    run = attach(layers, trainer)
    for number, (x, y) in enumerate(run.batches(epochs=2)):
        with autograd.record():
            loss = ((layers(x) - y) ** 2).mean()
        run.backward(loss)
        in_loop(number, layers, trainer, run)
        trainer.step(1)
    run.close()
    return weights(layers)


def usual_loop(attach: Attach) -> list[float]:
    return trained(attach, lambda *_: None, momentum=0.9)


def adam(attach: Attach) -> list[float]:
    return trained(attach, lambda *_: None, "adam")


def clip_by_norm(attach: Attach) -> list[float]:
    def clip(number: int, layers: Any, trainer: Any, run: Any) -> None:
        gradients = [one.grad() for one in parameters_of(layers)]  # clip_global_norm() is for float32 only
        norm = math.sqrt(sum(float((one**2).sum().asscalar()) for one in gradients))
        for one in gradients:
            one[:] = one * min(1.0, 0.05 / norm)

    return trained(attach, clip)


def folds(attach: Attach) -> list[float]:
    """Three trainings one after the other."""
    return [value for _ in range(3) for value in usual_loop(attach)]


def weighted_by_units(attach: Attach) -> list[float]:
    """The mean over the units of a batch, which is NaN on a worker whose samples have none."""
    layers = net()
    trainer = gluon.Trainer(layers.collect_params(), "sgd", {"learning_rate": 0.05})
    run = attach(layers, trainer)
    for x, y in run.batches(epochs=2):
        units = mx.nd.floor(mx.nd.clip(x[:, 0] + 0.5, 0, 3))  # none on worker 1 at first, none on worker 0 later
        with autograd.record():
            loss = (units * ((layers(x) - y) ** 2).mean(1)).sum() / units.sum()
        run.backward(loss, weight=units.sum())
        trainer.step(1)
    run.close()
    return weights(layers)


def sum_of_losses(attach: Attach) -> list[float]:
    """A sum that a constant divides."""
    layers = net()
    trainer = gluon.Trainer(layers.collect_params(), "sgd", {"learning_rate": 0.05})
    run = attach(layers, trainer)
    for x, y in run.batches(epochs=2):
        with autograd.record():
            loss = ((layers(x) - y) ** 2).sum() / 32
        run.backward(loss, reduction="sum")
        trainer.step(1)
    run.close()
    return weights(layers)


CASES = (usual_loop, adam, clip_by_norm, folds, weighted_by_units, sum_of_losses)


class Recorded:
    """`dynamix.attach`, which remembers the batches of all workers."""

    def __init__(self) -> None:
        self.batches: list[list[list[int]]] = []

    def __call__(self, layers: Any, trainer: Any) -> Any:
        run = dynamix.attach(layers, trainer, gluon.data.ArrayDataset(*columns_of_data()))
        self.batches.append(taken := [])
        original = run.batches

        def batches(**limits: int) -> Iterator[Any]:
            for batch in original(**limits):
                step, sampler = run.training.now.batch.step, run.training.data.stream._sampler
                taken.append([int(row) for rank in range(run.size) for row in sampler.indices(step, rank)])
                yield batch

        run.batches = batches
        return run


def both_ways(case: Callable[[Attach], list[float]]) -> dict[str, Any]:
    attach = Recorded()
    ours = case(attach)
    left = iter(attach.batches)
    plain = case(lambda layers, trainer: PlainRun(next(left)))
    taken = [row for batches in attach.batches for batch in batches for row in batch]
    return {"ours": ours, "plain": plain, "samples": len(taken)}


# -- refused ----------------------------------------------------------------------------------------------------------


def perturbed_weights(attach: Attach) -> None:
    def perturb(number: int, layers: Any, trainer: Any, run: Any) -> None:
        if run.rank == 1 and number == 5:
            layers[1].weight.set_data(layers[1].weight.data() + 1e-2)

    for _ in range(3):
        trained(attach, perturb)


def loops_of_different_length(attach: Attach) -> None:
    def leave(number: int, layers: Any, trainer: Any, run: Any) -> None:
        if run.rank == 1 and number == 5:
            run.close()

    trained(attach, leave)


def main() -> None:
    assert len(make_data()[0]) == SAMPLES
    if name := os.environ.get("TEST_REFUSED"):
        globals()[name](Recorded())
        print("it went on")
        sys.exit(0)
    print(json.dumps({case.__name__: both_ways(case) for case in CASES}))


if __name__ == "__main__":
    main()
