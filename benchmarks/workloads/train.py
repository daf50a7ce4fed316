"""Train a model with adaptive batch sizes: the script to copy. A number marks each line that DYNAMIX needs.

    python -m benchmarks.workloads.train --data fashion-mnist --model cnn --epochs 3

Started directly, it is one ordinary process; `dynamix launch` and `dynamix-bpslaunch` start it as one of many workers.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import torch

import dynamix_ps.torch as dynamix  # 1
from benchmarks.workloads import data, models, objective
from benchmarks.workloads.arguments import parse_arguments
from benchmarks.workloads.goal import Goal
from benchmarks.workloads.optimizers import make_optimizer
from benchmarks.workloads.schedule import scheduled
from benchmarks.workloads.torch_samples import SampleSet


def main() -> None:
    args = parse_arguments(__doc__, "torch", models.MODELS)
    torch.manual_seed(args.seed)
    found = data.load(args.data, args.path)
    print(f"data: {found.source}", file=sys.stderr, flush=True)
    model = models.make_model(args.model, found.shape, found.classes)
    optimizer = make_optimizer(model, args)
    train_set, test_set = SampleSet(found.train), SampleSet(found.test.first(args.test_samples))

    run = dynamix.attach(model, optimizer, train_set, lengths=found.lengths, ema_decay=args.ema_decay)  # 2

    def outputs(inputs: torch.Tensor) -> torch.Tensor:
        return objective.outputs(model, inputs, args.autocast)

    def score(inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        return objective.scores(outputs(inputs), targets)

    def evaluate() -> Mapping[str, float]:
        """Of the weights; where they are averaged, of the averages too, which then count."""
        values: Mapping[str, float] = run.evaluate(test_set, score)  # 5
        return values if args.ema_decay is None else run.evaluate(test_set, score, averaged=True)

    goal = Goal(args.epochs, args.most_epochs, args.metric, args.target)
    for inputs, targets in goal.batches(run):  # 3, run.batches(epochs=...) without a target
        for group in optimizer.param_groups:
            group["lr"] = scheduled(args.schedule, args.lr, run)
        optimizer.zero_grad()
        logits = outputs(inputs)
        loss, correct = objective.mean_loss(logits, targets), objective.correct(logits, targets)
        run.backward(loss, correct, objective.weight(targets))  # 4, instead of loss.backward()
        optimizer.step()
        if run.every_samples(args.eval_samples) if args.eval_samples else run.every(args.eval_every):
            goal.see(evaluate())

    final = evaluate()
    if run.rank == 0:
        values = ", ".join(f"test {name} {value:.4f}" for name, value in final.items())
        print(f"final: iteration {run.iteration}, {values}", flush=True)
    run.close()


if __name__ == "__main__":
    main()
