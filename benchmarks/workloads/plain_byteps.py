"""A plain BytePS training script without DYNAMIX. Trains a small model on digits and prints a checksum of its weights.

If the sums are right, every worker prints the same checksum.
"""

from __future__ import annotations

import argparse

import byteps.torch as bps
import torch
from torch.nn.functional import cross_entropy

from benchmarks.workloads import data, models
from benchmarks.workloads.torch_samples import SampleSet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=32, help="samples per worker and step")
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()

    bps.init()
    torch.manual_seed(bps.rank())  # different first weights, so that the broadcast matters
    digits = data.load("digits")
    images, labels = SampleSet(digits.train).tensors
    model = models.make_model("mlp", digits.shape, digits.classes)
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9), named_parameters=model.named_parameters()
    )
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)

    loss = torch.tensor(float("nan"))
    for step in range(args.steps):
        first = (step * bps.size() + bps.rank()) * args.batch
        chosen = torch.arange(first, first + args.batch) % len(labels)
        optimizer.zero_grad()
        loss = cross_entropy(model(images[chosen]), labels[chosen])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).double()
    with torch.no_grad():
        test_images, test_labels = SampleSet(digits.test).tensors
        accuracy = (model(test_images).argmax(1) == test_labels).float().mean()
    checksum = f"{weights.sum():.12e} {weights.square().sum():.12e}"
    line = f"rank {bps.rank()} of {bps.size()} loss {loss:.4f} accuracy {accuracy:.4f} weights {checksum}\n"
    print(line, end="", flush=True)  # one write, because workers share a terminal
    bps.shutdown()


if __name__ == "__main__":
    main()
