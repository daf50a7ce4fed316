"""A worker of the soak: it trains until a file says that it is over, and writes down what was in every sum.

The regression has one minimum, so rounding in sums of another order does not grow over thousands of steps, and one
process that takes the same steps ends with the same weights.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import dynamix_ps.torch as dynamix
from benchmarks.studies.membership.soak_place import NETWORK, clock_file, enter, turn_clock
from benchmarks.studies.membership.soak_training import Training
from dynamix_ps.config import variables

LONGEST = 1_000_000  # epochs


def sums_file(folder: Path, rank: int, start: str) -> Path:
    """What the sums of a worker were made of, one a line; `start` counts its processes."""
    return folder / f"sums-{rank}-{start}.jsonl"


def weights_file(folder: Path, rank: int) -> Path:
    """The last weights of a worker."""
    return folder / f"weights-{rank}.pt"


def over_file(folder: Path) -> Path:
    """Where it is, training ends with the epoch at hand."""
    return folder / "over"


def main() -> None:
    """Train until it is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for what is written down")
    parser.add_argument("--pause", type=float, required=True, help="seconds after every step")
    args = parser.parse_args()
    enter(os.environ[NETWORK])
    training = Training()
    run = dynamix.attach(training.model, training.optimizer, training.data)
    is_late = False
    ends = TensorDataset(torch.zeros(64))

    def over(batch: torch.Tensor) -> dict[str, float]:
        return {"over": float(len(batch)) if over_file(args.out).exists() else 0.0}

    with sums_file(args.out, run.rank, os.environ[variables.STARTS]).open("w", buffering=1) as sums:
        for epoch in range(run.epoch, LONGEST):
            for inputs, targets in run.batches(epochs=epoch + 1):
                iteration = run.iteration
                training.optimizer.zero_grad()
                run.backward(cross_entropy(training.model(inputs), targets))
                training.optimizer.step()
                assert run.training.now.sum is not None
                present, step = run.training.now.sum.view.present, run.training.now.batch.step
                numbers = [int(number) for rank in present for number in run.training.data.sampler.indices(step, rank)]
                told = {
                    "iteration": iteration,
                    "present": present,
                    "numbers": numbers,
                    "factor": run.training.now.rate.factor,
                }
                if run.rank in present:  # else it follows the others before it enters, and its round may be made anew
                    sums.write(json.dumps({"kind": "sum", **told, "at_s": time.monotonic()}) + "\n")
                time.sleep(args.pause)
                if (late := clock_file(args.out, run.rank).exists()) != is_late:
                    turn_clock(back=late)
                    is_late = late
            if run.evaluate(ends, over)["over"]:  # the same on all workers
                break
    torch.save([parameter.detach() for parameter in training.model.parameters()], weights_file(args.out, run.rank))
    run.close()


if __name__ == "__main__":
    main()
