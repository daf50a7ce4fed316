"""Train a model with adaptive batch sizes: the script to copy. A number marks each line that DYNAMIX needs.

    python -m benchmarks.workloads.train --data fashion-mnist --model cnn --epochs 3

Started directly, it is one ordinary process; `dynamix launch` and `dynamix-bpslaunch` start it as one of many workers.
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch.nn.functional import cross_entropy

import dynamix_ps.torch as dynamix  # 1
from benchmarks.workloads import data, models
from benchmarks.workloads.arguments import parse_arguments
from benchmarks.workloads.goal import Goal
from benchmarks.workloads.torch_images import ImageSet


def main() -> None:
    args = parse_arguments(__doc__, models.MODELS)
    torch.manual_seed(args.seed)
    images = data.load(args.data, args.path)
    print(f"data: {images.source}", file=sys.stderr, flush=True)
    model = models.make_model(args.model, images.shape, images.classes)
    optimizer = make_optimizer(model, args)
    train_set, test_set = ImageSet(images.train), ImageSet(images.test)

    run = dynamix.attach(model, optimizer, train_set)  # 2

    def score(inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = model(inputs)
        loss = cross_entropy(logits, targets, reduction="sum")
        return {"accuracy": (logits.argmax(1) == targets).sum(), "loss": loss}

    goal = Goal(args.epochs, args.most_epochs, args.target)
    for inputs, targets in goal.batches(run):  # 3, run.batches(epochs=...) without a target
        optimizer.zero_grad()
        logits = model(inputs)
        loss = cross_entropy(logits, targets)
        run.backward(loss, correct=(logits.argmax(1) == targets).sum())  # 4, instead of loss.backward()
        optimizer.step()
        if run.every_samples(args.eval_samples) if args.eval_samples else run.every(args.eval_every):
            goal.see(run.evaluate(test_set, score)["accuracy"])  # 5

    final = run.evaluate(test_set, score)
    if run.rank == 0:
        found = f"test accuracy {final['accuracy']:.4f}, test loss {final['loss']:.4f}"
        print(f"final: iteration {run.iteration}, {found}", flush=True)
    run.close()


def make_optimizer(model: torch.nn.Module, args: argparse.Namespace) -> torch.optim.Optimizer:
    if args.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=args.lr)
    return torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)


if __name__ == "__main__":
    main()
