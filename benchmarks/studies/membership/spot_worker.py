"""A worker of the spot study: the CNN on Fashion-MNIST, on a machine that takes a fixed time for a sample.

It waits in every batch for as long as such a machine would compute, so four of them train on two cores. It trains until
somebody ends it.
"""

from __future__ import annotations

import argparse
import time

import torch

import dynamix_ps.torch as dynamix
from benchmarks.workloads import data, models, objective
from benchmarks.workloads.torch_samples import SampleSet

LEARNING_RATE, MOMENTUM = 0.045, 0.9  # tuned for the first sizes (docs/benchmarks.md)
EVALUATED_EVERY, TEST_SAMPLES = 3_000, 2_000  # samples
LONGEST = 1_000  # epochs


def main() -> None:
    """Train for ever."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True, help="of the first weights")
    parser.add_argument("--sample-s", type=float, nargs="+", required=True, help="seconds per sample, by rank")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    found = data.load("fashion-mnist", None)
    model = models.make_model("cnn", found.shape, found.classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    test_set = SampleSet(found.test.first(TEST_SAMPLES))
    run = dynamix.attach(model, optimizer, SampleSet(found.train))

    def score(inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        return objective.scores(model(inputs), targets)

    for inputs, targets in run.batches(epochs=LONGEST):
        optimizer.zero_grad()
        logits = model(inputs)
        loss, correct = objective.mean_loss(logits, targets), objective.correct(logits, targets)
        time.sleep(args.sample_s[run.rank] * len(targets))
        run.backward(loss, correct)
        optimizer.step()
        if run.every_samples(EVALUATED_EVERY):
            run.evaluate(test_set, score)


if __name__ == "__main__":
    main()
