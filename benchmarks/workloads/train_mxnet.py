"""Train with MXNet and adaptive batch sizes: the script to copy. A number marks each line that DYNAMIX needs.

    python -m benchmarks.workloads.train_mxnet --data fashion-mnist --model cnn --epochs 3

Started directly, it is one ordinary process; `dynamix launch` and `dynamix-bpslaunch` start it as one of many workers.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import dynamix_ps.mxnet as dynamix  # 1, before mxnet itself

# isort: split
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from benchmarks.workloads import data, mxnet_models
from benchmarks.workloads.arguments import parse_arguments
from benchmarks.workloads.goal import Goal
from benchmarks.workloads.mxnet_images import ImageSet
from benchmarks.workloads.schedule import scheduled

cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()


def main() -> None:
    args = parse_arguments(__doc__, "mxnet", mxnet_models.MODELS)
    mx.random.seed(args.seed)
    images = data.load(args.data, args.path)
    print(f"data: {images.source}", file=sys.stderr, flush=True)
    net = mxnet_models.make_model(args.model, images.shape, images.classes)
    trainer = make_trainer(net, args)
    train_set, test_set = ImageSet(images.train), ImageSet(images.test.first(args.test_samples))

    run = dynamix.attach(net, trainer, train_set)  # 2

    def score(inputs: Any, targets: Any) -> dict[str, Any]:
        logits = net(inputs)
        return {"accuracy": correct(logits, targets), "loss": cross_entropy(logits, targets).sum()}

    goal = Goal(args.epochs, args.most_epochs, args.metric, args.target)
    for inputs, targets in goal.batches(run):  # 3, run.batches(epochs=...) without a target
        trainer.set_learning_rate(scheduled(args.schedule, args.lr, run))
        with autograd.record():
            logits = net(inputs)
            loss = cross_entropy(logits, targets).mean()
        run.backward(loss, correct=correct(logits, targets))  # 4, instead of loss.backward()
        trainer.step(1)  # 5, because the gradient is already a mean
        if run.every_samples(args.eval_samples) if args.eval_samples else run.every(args.eval_every):
            goal.see(run.evaluate(test_set, score))  # 6

    final = run.evaluate(test_set, score)
    if run.rank == 0:
        found = f"test accuracy {final['accuracy']:.4f}, test loss {final['loss']:.4f}"
        print(f"final: iteration {run.iteration}, {found}", flush=True)
    run.close()


def correct(logits: Any, targets: Any) -> Any:
    return (logits.argmax(1).astype(np.int64) == targets).sum()


def make_trainer(net: gluon.Block, args: argparse.Namespace) -> gluon.Trainer:
    if args.optimizer == "adam":
        return gluon.Trainer(net.collect_params(), "adam", {"learning_rate": args.lr})
    return gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": args.lr, "momentum": args.momentum})


if __name__ == "__main__":
    main()
