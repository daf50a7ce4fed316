"""Gluon loaders on two workers, with plans that change and a resume in mid-pass. Prints which samples were seen."""

from __future__ import annotations

import json
import os
from typing import Any

import dynamix_ps.mxnet as dynamix

# isort: split
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon.data import DataLoader

import worker_hooks.session
from dynamix_ps.messages import Plan

EPOCHS = 2
PLANS = ((0, (4, 4)), (3, (6, 8)), (7, (0, 7)), (18, (9, 3)))  # (iterations, sizes from then on, after the lag)
STOP = 9  # iterations before the resume


class Numbers(gluon.data.Dataset):
    """Every sample is its number, and a random one."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> Any:
        return number, np.random.rand()


class Buckets(gluon.data.Sampler):
    """Batches of neighbours in random order, by the global generator."""

    def __init__(self, length: int) -> None:
        self.buckets = [list(range(first, min(first + 7, length))) for first in range(0, length, 7)]

    def __iter__(self) -> Any:
        return iter([self.buckets[place] for place in np.random.permutation(len(self.buckets))])

    def __len__(self) -> int:
        return len(self.buckets)


def make_loader(length: int, order: str, **options: Any) -> DataLoader:
    dataset = Numbers(length)
    if order == "buckets":
        return DataLoader(dataset, batch_sampler=Buckets(length), **options)
    return DataLoader(dataset, 4, shuffle=order == "shuffle", **options)


def train(loader: DataLoader, state: dict[str, Any] | None) -> tuple[list[list[list[int]]], dict[str, Any], float]:
    """Train from `state`, or from the begin until STOP iterations are complete.

    Returns the samples of this worker, one list of batches per epoch, the state at the end, and the weight.
    """
    worker_hooks.session._accounts.clear()  # begin with the sizes of the loader
    net = gluon.nn.Dense(1, in_units=1)
    net.initialize(mx.init.One())
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-4})
    run = dynamix.attach(net, trainer, loader)
    if state:
        run.load_state_dict(state)
    plans = [(after, Plan(number, sizes)) for number, (after, sizes) in enumerate(PLANS, 1)]
    run.training.session.newest_plan = lambda: [plan for after, plan in plans if after <= run.iteration][-1]
    seen: list[list[list[int]]] = [[] for _ in range(EPOCHS)]
    stopped: dict[str, Any] = {}
    for epoch in run.epochs(EPOCHS):
        for numbers, _ in run.batches():
            seen[epoch].append(
                numbers[: run.training.now.batch.samples].asnumpy().tolist() if run.training.now.batch.samples else []
            )
            with autograd.record():
                loss = net(numbers.astype(np.float32).expand_dims(1)).mean()
            run.backward(loss)
            trainer.step(1)
            if state is None and run.iteration == STOP:
                stopped = run.state_dict()  # after the loop it would be that of the next pass
                break
        else:
            continue
        break
    place, weight = stopped or run.state_dict(), float(net.weight.data().asscalar())
    run.close()
    return seen, place, weight


def main() -> None:
    rank = int(os.environ["DMLC_WORKER_ID"])
    results = []
    for case in json.loads(os.environ["TEST_LOADERS"]):
        length, order, options = case["length"], case["order"], case["options"][rank]
        begun, state, _ = train(make_loader(length, order, **options), None)
        gone_on, _, weight = train(make_loader(length, order, **options), state)
        results.append({"begun": begun, "gone_on": gone_on, "weight": weight})
    print(json.dumps(results))


if __name__ == "__main__":
    main()
